"""`tasuki why` names every ending as it was: staged with real processes, signals and kills."""

from __future__ import annotations

import os
import re
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

import tasuki
from tests.commands.person import Project, finish, processes_about, until
from tests.commands.test_going_on import wait_for_holder
from tests.commands.test_terminal import COLOUR, on_terminal

STAGES = [{"name": "one", "data": "d", "epochs": 8}]  # 48 steps
SLOW = {"pause": 0.05}
KILLED = '''

class Killed(Learner):
    """Is killed as the kernel kills who takes too much memory, once."""

    def loss(self, model, batch):
        if self.calls == 10 and os.path.exists("trap"):
            os.unlink("trap")
            os.kill(os.getpid(), signal.SIGKILL)
        return super().loss(model, batch)
'''


@pytest.fixture
def slow(project) -> Project:
    return project(stages=STAGES, params=SLOW)


def why(made: Project, here) -> dict[str, Any]:
    said = here(made.folder, "why", "exp", "--json")
    assert said.code == 0, said
    told = said.json()
    parts = told["ledger"]["parts"]
    assert sum(parts.values()) == pytest.approx(told["ledger"]["wall_s"], abs=1e-6)
    assert told["notes"] == []
    return told


def sentences(told: dict[str, Any]) -> list[str]:
    return [attempt["sentence"] for attempt in told["attempts"]]


def assert_saved_and_went_on(attempt: dict[str, Any], then: dict[str, Any]) -> None:
    """What it says is what the next attempt found."""
    assert attempt["saved_step"] == attempt["to_step"] == then["from_step"]
    assert attempt["steps_lost"] == 0 and attempt["back_after_s"] is not None
    saved = (
        rf"; saved step {attempt['saved_step']} in [\d.]+m?s; 0 steps lost; back after [\d.]+m?s"
    )
    assert re.search(saved, attempt["sentence"]), attempt


# -- the endings ------------------------------------------------------------------------------


def test_a_run_that_went_through_is_complete(finished, here):
    told = why(finished, here)
    (only,) = sentences(told)
    assert re.fullmatch(r"complete after [\d.]+m?s", only)
    assert told["state"] == "complete" and told["hint"] == ""
    assert [s["name"] for s in told["stages"]] == ["small", "large"]
    assert told["stages"][1]["first_step"] == told["stages"][0]["total_steps"] == 18


def test_a_preemption_is_named_with_what_was_saved_and_when_it_went_on(slow, here):
    assert here(slow.folder, "run", "--preempt-at", "1800ms").code == 0
    told = why(slow, here)
    first, last = told["attempts"]
    assert first["sentence"].startswith("preempted after "), first
    assert_saved_and_went_on(first, last)
    assert last["sentence"].startswith("complete after")


def test_a_crash_of_the_recipe_is_named_by_its_error_and_the_third_one_as_a_hold(project, here):
    made = project(params={"fail_at": 9}, defaults__save={"every": "100 steps"})
    assert here(made.folder, "run").code == 1
    told = why(made, here)
    assert len(told["attempts"]) == 3 and told["state"] == "held"
    for attempt in told["attempts"]:
        crash = r"crashed after [\d.]+m?s: ValueError: planted failure in call 10.*nothing saved; "
        assert re.match(crash, attempt["sentence"]), attempt
        assert attempt["steps_lost"] > 0
    assert sentences(told)[-1].endswith("the run is held")
    assert told["hint"] and "attempts in a row" in told["reason"]
    shown = here(made.folder, "why", "exp").out
    assert "exp: held, 3 attempts" in shown and "hint:" in shown


def test_a_mistake_of_the_user_is_named_with_what_to_do(project, here):
    made = project(recipe="NoLoss")
    assert here(made.folder, "run").code == 1
    told = why(made, here)
    (only,) = sentences(told)
    assert only.startswith("failed by a mistake") and "loss" in only
    assert only.endswith("the run has failed") and told["state"] == "failed"
    assert "resume exp" in told["hint"] or told["hint"]


def test_a_kill_is_named_as_one_with_the_steps_it_cost(project, here):
    made = project(recipe="Killed", params={"pause": 0.05}, defaults__log_every="1 steps")
    (made.folder / "trap").touch()
    path = made.folder / "recipes.py"
    path.write_text(path.read_text() + KILLED)
    assert here(made.folder, "run").code == 0, made.logs()
    first, last = why(made, here)["attempts"]
    assert first["sentence"].startswith("killed by SIGKILL after ")
    assert "memory" in first["sentence"] and "last saved step 7" in first["sentence"]
    assert last["from_step"] == 7 and first["steps_lost"] == first["to_step"] - 7 > 0


@pytest.mark.long
def test_a_handover_at_the_limit_is_named(slow, here):
    assert here(slow.folder, "run", "--set", "experiments.exp.stages.0.epochs=1").code == 0
    shutil.rmtree(slow.run().path)
    assert here(slow.folder, "run", "--set", "cluster.time_limit=2800ms").code == 0, slow.logs()
    told = why(slow, here)["attempts"]
    assert len(told) >= 2 and told[0]["sentence"].startswith("handed over at its time limit after")
    assert_saved_and_went_on(told[0], told[1])


@pytest.mark.long
def test_ctrl_c_is_named_as_an_interruption(slow, here):
    process = slow.start("run")
    until(lambda: slow.step() >= 3, slow.logs)
    process.send_signal(signal.SIGINT)
    assert finish(process).code == 75
    told = why(slow, here)
    (only,) = sentences(told)
    assert only.startswith("interrupted (Ctrl-C") and "0 steps lost" in only
    assert "tasuki resume exp" in told["hint"]


@pytest.mark.long
def test_a_cancel_is_named(slow, here):
    process = slow.start("run")
    until(lambda: slow.step() >= 3, slow.logs)
    assert here(slow.folder, "cancel", "exp").code == 0
    finish(process)
    told = why(slow, here)
    (only,) = sentences(told)
    assert only.startswith("cancelled after") and "0 steps lost" in only
    assert told["state"] == "cancelled" and told["hint"]


@pytest.mark.long
def test_a_supervisor_that_was_killed_died_without_a_word(real_project, here):
    """As on a node that is gone."""
    made = real_project(params={"pause": 0.05}, stages=STAGES)
    process = made.start("run")
    until(lambda: made.step() >= 8, made.logs)
    os.kill(wait_for_holder(made, 1), signal.SIGKILL)
    assert finish(process).code == 0
    until(lambda: processes_about(made.folder) == [], lambda: processes_about(made.folder))
    first, last = why(made, here)["attempts"]
    assert first["sentence"].startswith("died without a word after"), first
    assert last["from_step"] <= first["to_step"]


# -- while it runs, and from Python -----------------------------------------------------------


def test_a_run_that_goes_on_says_so_and_the_function_gives_what_the_verb_prints(project, here):
    made = project(stages=STAGES, params={"pause": 0.2})
    process = made.start("run")
    until(lambda: made.step() >= 1, made.logs)
    told = why(made, here)
    process.send_signal(signal.SIGINT)
    finish(process)
    assert sentences(told) == ["still running"] and told["attempts"][0]["ended_at"] is None
    assert tasuki.why("exp", runs=made.runs) == why(made, here)


def test_it_fits_a_terminal_of_40_columns_without_colour_and_without_utf_8(finished):
    shown = on_terminal(finished, "why", "exp", COLUMNS="40", NO_COLOR="1")
    assert "complete after" in shown and not COLOUR.search(shown)
    assert max(len(line.rstrip("\r")) for line in shown.split("\n")) <= 40, shown
    ascii_only = {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "NO_COLOR": "1"}
    plain = on_terminal(finished, "why", "exp", **ascii_only)
    assert plain.isascii() and re.search(r"start +[\d.]+m?s +\d+% +#+", plain), plain


# -- bad input --------------------------------------------------------------------------------


@pytest.fixture
def copied(finished, tmp_path) -> Project:
    shutil.copytree(finished.folder, tmp_path / "p")
    return Project(tmp_path / "p", finished.environment)


@pytest.mark.parametrize(
    "gone",
    [("events",), ("claims",), ("control", "stages"), ("spec.json",), ("../.jobs", "../.plans")],
    ids="+".join,
)
def test_of_a_run_that_is_half_deleted_the_other_half_is_told(copied, here, gone):
    for name in gone:
        path = copied.run().path / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    for words in (("why", "exp"), ("why", "exp", "--json")):
        said = here(copied.folder, *words)
        assert said.code == 0 and "Traceback" not in said.err, said
        assert "exp" in said.out
    if gone == ("events",):
        assert "events are gone" in said.out


def test_a_run_that_is_wholly_gone_is_a_mistake_with_a_hint(copied, here):
    shutil.rmtree(copied.run().path)
    said = here(copied.folder, "why", "exp")
    assert said.code == 2 and "no run `exp`" in said.err, said


def test_events_of_a_newer_tasuki_are_left_out_and_told_of(copied, here):
    path = copied.run().events / "1.0.rank0.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join(line.replace("{", '{"format": 2, ', 1) for line in lines) + "\n")
    told = here(copied.folder, "why", "exp", "--json").json()
    assert f"{len(lines)} events of a newer tasuki" in told["notes"][0]
    assert told["attempts"][0]["sentence"].startswith("complete")


def test_a_clock_that_was_set_back_makes_no_negative_times(copied, here):
    path = copied.run().events / "1.0.supervisor.jsonl"
    lines = path.read_text().splitlines()
    lines[-1] = re.sub(r'"t": [\d.]+', '"t": 12.5', lines[-1])
    path.write_text("\n".join(lines) + "\n")
    said = here(copied.folder, "why", "exp")
    assert said.code == 0 and not re.search(r"-\d+(\.\d+)?(ms|s|m|h|d)", said.out), said


def test_damaged_events_break_nothing(copied, here):
    events = Path(copied.run().events)
    junk = '{"t": 1, "claim": 1, "who": "rank0", "kind": "progress", "parts": "x", "step": "y"}\n'
    junk += '{"t": 2, "claim": 1, "kind": "worker-started"}\n{"t": 3, "claim": 1, "kind": "time", '
    junk += '"who": "rank0", "parts": {"step": "NaN", "start": null}}\n[1]\n{torn'
    (events / "1.0.junk.jsonl").write_text(junk)
    (events / "x.y.jsonl").write_bytes(b"\xff\xfe\n")
    said = here(copied.folder, "why", "exp", "--json")
    assert said.code == 0, said
    assert sum(said.json()["ledger"]["parts"].values()) == pytest.approx(
        said.json()["ledger"]["wall_s"], abs=1e-6
    )
