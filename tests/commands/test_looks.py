"""How words and tables look in terminals of usual widths, without starting anything."""

from __future__ import annotations

import io
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from rich.console import Console

from tasuki.cli.main import _report
from tasuki.cli.options import read_spec
from tasuki.cli.run import _unusual
from tasuki.commands.data import DataWork, check_files
from tasuki.errors import DataError, UsageError
from tasuki.testing import FakeClock
from tasuki.views.estimate import show_estimate
from tasuki.views.history import show_history
from tasuki.views.live import LiveView, line
from tasuki.views.status import show_results
from tasuki.views.text import say, warn, wrap

PATH = "/scratch/a-group/somebody/projects/with-a-long-name/experiments/tasuki.yaml:12:3"


def screen(width: int, *, is_terminal: bool = True) -> Console:
    return Console(
        file=io.StringIO(), width=width, force_terminal=is_terminal, color_system=None, _environ={}
    )


def shown(console: Console) -> list[str]:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize("width", [20, 40, 80])
def test_words_and_paths_stay_whole_where_lines_are_broken(width):
    text = f"{PATH}: the key `--accept-change lr` is not known, though `steps` is"
    broken = wrap(text, width)
    assert broken.split() == text.split()
    assert all(len(line) <= width or " " not in line for line in broken.splitlines())
    assert wrap("  two blanks begin this line, and its others", 20).splitlines() == [
        *("  two blanks begin", "  this line, and its", "  others")
    ]
    assert wrap(text, None) == text


def test_a_terminal_gets_broken_lines_and_a_file_gets_none():
    text = "with `--set cluster.cpus=1` CPU time is measured, which others hardly change"
    for is_terminal, lines in ((True, 3), (False, 1)):
        console = screen(40, is_terminal=is_terminal)
        warn(console, text)
        assert len(shown(console)) == lines
        assert " ".join(shown(console)) == f"warning: {text}"
        assert not is_terminal or all(len(line) <= 40 for line in shown(console))
    console = screen(40)
    say(console, "an \x1b[31mescape")
    assert "\x1b" not in "".join(shown(console))


@pytest.mark.parametrize("width", [50, None])
def test_errors_and_hints_are_broken_at_spaces_on_a_terminal_alone(monkeypatch, capsys, width):
    monkeypatch.setattr("tasuki.views.text.width_of", lambda _: width)
    hint = "go on with `tasuki run --accept-change lr`, or begin another with `--new`"
    assert _report(UsageError(f"{PATH}: the learning rate changed", hint=hint)) == 2
    error, told = capsys.readouterr().err.split("\n\n")
    assert " ".join(error.split()) == f"error: {PATH}: the learning rate changed"
    assert " ".join(told.split()) == f"hint: {hint}"
    assert (len(told.splitlines()) > 1) == (width is not None)
    assert width is None or all(len(line) <= width for line in told.splitlines())


# -- estimate --------------------------------------------------------------------------------------


def estimated(gpu: str, has: int, **other: Any) -> dict[str, Any]:
    needs = 17_100_000_000
    figures = {"micro_batch": 128, "accumulation": 16, "max_micro_batch": 131, "step_s": 0.671}
    limits = {"wall_s": 90_000.0, "stage_wall_s": 90_000.0, "limit_s": 97_200.0, "jobs": 3}
    row = {
        "experiment": "exp",
        "stage": "small_512",
        "gpu": gpu,
        "bucket": 512,
        "samples": 61_234,
        **figures,
        "budget": None,
        "cost_budget": None,
        **limits,
        "host_bytes": 40 << 30,
        "peak_bytes": needs,
        "capacity_bytes": has,
        "headroom_bytes": has - needs,
        "error": 0.5,
        "breakdown": {"device": {}, "host": {}},
        "source": "predicted",
        "used": [],
        "sources": {"step": f"roofline of {gpu} (data sheet, fp32) × 2.1", "host": "counted"},
        "submit_command": f"tasuki submit --set cluster.gpu={gpu}",
        "notes": [],
        "remedies": [],
    }
    return row | other


def estimates(*rows: dict[str, Any], compares: bool = False) -> dict[str, Any]:
    told = {"notes": [], "warnings": [], "fits": {}}
    return {"stages": list(rows), "compares": compares, **told}


@pytest.mark.parametrize("width", [64, 72, 80, 120])
@pytest.mark.parametrize("compares", [True, False])
def test_estimates_leave_columns_out_instead_of_cutting_units(width, compares):
    cards = ("rtx-6000-ada", "a100-80gb") if compares else ("rtx-6000-ada",)
    console = screen(width)
    rows = [estimated(card, 48_000_000_000) for card in cards]
    show_estimate(estimates(*rows, compares=compares), console=console)
    lines = shown(console)
    text = "\n".join(lines)
    assert "…" not in text and all(len(line) <= width for line in lines)
    assert "17.1 GB" in text and "3 × 1d3h, 40G" in text
    assert ("671 ms" in text) == (width >= 120)


def test_several_cards_share_a_line_about_steps_that_names_none():
    console = screen(120)
    rows = [estimated(card, 48_000_000_000) for card in ("p100", "h200")]
    show_estimate(estimates(*rows, compares=True), console=console)
    assert "step: roofline of each card (data sheet, fp32) × 2.1" in shown(console)
    assert "roofline of p100" not in "\n".join(shown(console))


def test_only_what_fits_comes_with_a_command_and_warnings_come_before_it():
    fits = estimated("a100-80gb", 80_000_000_000)
    not_so = estimated("t4", 16_000_000_000, remedies=["does not fit: take less"])
    console = screen(120)
    show_estimate(estimates(not_so, fits), console=console)
    lines = shown(console)
    assert lines[-1] == "  tasuki submit --set cluster.gpu=a100-80gb"
    assert "cluster.gpu=t4" not in "\n".join(lines)
    warned = next(at for at, line in enumerate(lines) if "does not fit" in line)
    assert warned < len(lines) - 1


# -- history, run ----------------------------------------------------------------------------------


def past(at: str, **other: Any) -> dict[str, Any]:
    name = {"run": "baseline-1", "stage": "small_512", "device": "cpu", "gpu": None}
    figures = {"ranks": 1, "samples": 12_000, "step_s": 0.25, "peak_bytes": None, "wall_s": 300.0}
    rest = {"device_model": "x86_64, 2 × AVX512", "queue_s": None, "attempts": 3, "preemptions": 1}
    return {"at": at, **name, **figures, **rest, **other}


@pytest.mark.parametrize("width", [64, 80, 120])
def test_history_shows_short_local_times_and_whole_cells(width):
    now = datetime(2026, 11, 17, 23, 10).astimezone()
    times = [now - timedelta(minutes=17), now - timedelta(days=2), now - timedelta(days=500)]
    stages = [past(f"{at.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}") for at in times]
    stages.append(past(stages[0]["at"], device="cuda", gpu="a100-80gb"))
    console = screen(width)
    found = {"stages": stages, "all": 4, "left_out": []}
    show_history(found, folder="runs", now=now.timestamp(), console=console)
    lines = shown(console)
    assert all(len(line) <= width and "…" not in line for line in lines)
    starts = ("when", "─", "22:53 ", "11-15 23:10 ", "2025-07-05 ", "22:53 ")
    for text, start in zip(lines, starts, strict=True):
        assert text.startswith(start)
    assert " cpu " in lines[2] and "a100-80gb" in lines[5] and "baseline-1/small_512" in lines[2]


@pytest.mark.parametrize("width", [50, 80, 120])
def test_a_run_stays_on_one_line_of_its_window(width):
    run = {
        **dict.fromkeys(("phase", "phase_stage"), ""),
        "experiment": "baseline",
        "stages": ["a", "b", "c"],
        "done": [],
        "state": "running",
        "stage": "small_512",
        "step": 12_345,
        "total_steps": 100_000,
        "loss": 0.1234,
        "eta_s": 3700.0,
        "attempt": 1,
    }
    told = line(run, width=width)
    assert len(told) <= width or (width == 50 and "█" not in told)
    assert told.endswith("attempt 1") and "12,345/100,000" in told
    assert ("█" in told) == (width >= 120)
    assert line(run).count("█") + line(run).count("░") == 20
    clock = FakeClock()
    console = screen(width)
    with LiveView(lambda: [run], clock=clock, console=console) as view:
        view.tick()
    assert not any(text.startswith(("attempt", "1")) for text in shown(console))


def test_a_run_that_has_no_place_yet_is_shown_as_waiting_not_as_starting():
    run = {"experiment": "b", "state": "waiting", "attempt": 0, "stages": ["one"], "done": []}
    assert line(run) == "b  waiting"


def test_a_run_whose_stages_are_all_done_is_finishing_not_starting():
    run = {**dict.fromkeys(("phase", "phase_stage"), ""), "experiment": "b", "state": "running"}
    done = {"stage": "one", "stages": ["one"], "done": ["one"], "doing": "", "attempt": 2}
    assert line({**run, **done, "total_steps": 20}) == "b  finishing  attempt 2"


def test_what_a_run_says_right_before_its_end_is_still_shown_and_once():
    run = {"experiment": "exp", "notable": []}
    console = screen(120, is_terminal=False)
    with LiveView(lambda: [run], clock=FakeClock(), console=console):
        run["notable"] = ["attempt 1: step 0 ran out of memory"]
    assert [text for text in shown(console) if text] == ["exp  attempt 1: step 0 ran out of memory"]


@pytest.mark.parametrize("place", ["runs", "../elsewhere"])
def test_the_end_of_a_run_names_its_folder_where_nobody_would_look(tmp_path, monkeypatch, place):
    monkeypatch.chdir(tmp_path)
    run = {"experiment": "exp-2", "state": "complete", "attempts": 1, "cost": None, "stages": []}
    console = screen(200)
    runs = _unusual(str(tmp_path / place))
    show_results({"runs": [run]}, runs=runs, console=console)
    where = [] if place == "runs" else [f"  in {tmp_path / place}/exp-2"]
    assert shown(console) == ["exp-2: complete", *where]


def test_a_memory_cap_that_cannot_be_read_is_refused_before_anything_is(monkeypatch):
    monkeypatch.setenv("TASUKI_MEMORY_CAP", "4X")
    with pytest.raises(UsageError, match="TASUKI_MEMORY_CAP: `4X` is not a number of bytes"):
        read_spec("there/is/no/such.yaml", (), None)


def test_folders_of_tokens_are_named_where_the_folder_above_is_checked(tmp_path):
    for name in ("train", "valid"):
        (tmp_path / "tokens" / name).mkdir(parents=True)
        (tmp_path / "tokens" / name / "index.json").touch()
    work = DataWork(python="/none", environment={})
    with pytest.raises(
        DataError, match="holds no samples, but folders of tokens: train, valid"
    ) as it:
        check_files([str(tmp_path / "tokens")], work=work)
    assert f"data check {tmp_path}/tokens/train {tmp_path}/tokens/valid`" in it.value.hint
