"""How words and tables look in terminals of usual widths, without starting anything."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from tasuki.cli.main import _report
from tasuki.cli.options import read_spec
from tasuki.cli.run import _unusual
from tasuki.errors import UsageError
from tasuki.testing import FakeClock
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


def test_a_run_without_a_place_is_waiting_and_one_whose_stages_are_done_is_finishing():
    run = {"experiment": "b", "state": "waiting", "attempt": 0, "stages": ["one"], "done": []}
    assert line(run) == "b  waiting"
    run |= {**dict.fromkeys(("phase", "phase_stage"), ""), "state": "running", "attempt": 2}
    done = {"stage": "one", "done": ["one"], "doing": "", "total_steps": 20}
    assert line({**run, **done}) == "b  finishing  attempt 2"


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
