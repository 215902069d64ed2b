"""`tasuki why` names every ending as it was, and where the time between attempts went.

The words of each ending have their tests in tests/unit/runs/test_story.py; here are real runs.
"""

from __future__ import annotations

import re
import shutil
from typing import Any

import pytest

import tasuki
from tasuki.runs.atomic import write_json
from tasuki.runs.jobs import job_folder
from tasuki.testing import FakeClock
from tests.commands.projects import Project
from tests.commands.terminals import COLOUR, on_terminal
from tests.harness.written import WrittenRun

KILLED = '''

class Killed(Learner):
    """Is killed as the kernel kills who takes too much memory, once, after its first save."""

    def loss(self, model, batch):
        if self.calls == 10 and os.path.exists("trap"):
            until = time.time() + 60
            while not self.has_saved() and time.time() < until:
                time.sleep(0.01)
            os.unlink("trap")
            os.kill(os.getpid(), signal.SIGKILL)
        return super().loss(model, batch)

    def has_saved(self):
        from pathlib import Path

        events = Path("runs/exp/events").glob("*.jsonl")
        return any("step-000000007.c1" in path.read_text() for path in events)
'''


def why(made: Project, here) -> dict[str, Any]:
    said = here(made.folder, "why", "exp", "--json")
    assert said.code == 0, said
    told = said.json()
    parts = told["ledger"]["parts"]
    assert sum(parts.values()) == pytest.approx(told["ledger"]["wall_s"], abs=1e-6)
    assert told["notes"] == []
    return told


def test_a_run_that_went_through_is_complete_and_the_function_gives_the_same(finished, here):
    told = why(finished, here)
    (only,) = told["attempts"]
    assert re.fullmatch(r"complete after [\d.]+m?s", only["sentence"])
    assert told["state"] == "complete" and told["hint"] == ""
    assert [s["name"] for s in told["stages"]] == ["small", "large"]
    assert told["stages"][1]["first_step"] == told["stages"][0]["total_steps"] == 18
    assert tasuki.why("exp", runs=finished.runs) == told


def test_an_interruption_is_named_with_what_was_saved_and_when_it_went_on(trained, here):
    first, last = why(trained, here)["attempts"]
    assert first["sentence"].startswith("interrupted (Ctrl-C"), first
    assert first["saved_step"] == first["to_step"] == last["from_step"] >= 14
    assert first["steps_lost"] == 0 and first["back_after_s"] is not None
    saved = rf"; saved step {first['saved_step']} in [\d.]+m?s; 0 steps lost; back after [\d.]+m?s"
    assert re.search(saved, first["sentence"]), first
    assert last["sentence"].startswith("complete after")


def test_a_crash_of_the_recipe_is_named_by_its_error_and_the_third_one_as_a_hold(held, here):
    told = why(held, here)
    assert len(told["attempts"]) == 3 and told["state"] == "held"
    for attempt in told["attempts"]:
        crash = r"crashed after [\d.]+m?s: ValueError: planted failure in call 2.*nothing saved; "
        assert re.match(crash, attempt["sentence"]), attempt
    assert told["attempts"][-1]["sentence"].endswith("the run is held")
    assert told["hint"] and "attempts in a row" in told["reason"]
    shown = here(held.folder, "why", "exp").out
    assert "exp: held, 3 attempts" in shown and "hint:" in shown


def test_a_kill_is_named_as_one_with_the_steps_it_cost(project, here):
    made = project(recipe="Killed", defaults__log_every="1 steps")
    (made.folder / "trap").touch()
    path = made.folder / "recipes.py"
    path.write_text(path.read_text() + KILLED)
    assert here(made.folder, "run").code == 0, made.logs()
    first, last = why(made, here)["attempts"]
    assert first["sentence"].startswith("killed by SIGKILL after ")
    assert "memory" in first["sentence"] and "last saved step 7" in first["sentence"]
    assert last["from_step"] == 7 and first["steps_lost"] == first["to_step"] - 7 > 0


def test_a_run_that_goes_on_says_so(tmp_path, here):
    WrittenRun(tmp_path / "runs", FakeClock()).begin()
    (only,) = here(tmp_path, "why", "exp", "--json").json()["attempts"]
    assert only["sentence"] == "still running" and only["ended_at"] is None


def test_it_fits_a_terminal_of_40_columns_without_colour_and_without_utf_8(finished):
    shown = on_terminal(finished, "why", "exp", COLUMNS="40", NO_COLOR="1")
    assert "complete after" in shown and not COLOUR.search(shown)
    assert max(len(line.rstrip("\r")) for line in shown.split("\n")) <= 40, shown
    ascii_only = {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "NO_COLOR": "1"}
    plain = on_terminal(finished, "why", "exp", **ascii_only)
    assert plain.isascii() and re.search(r"start +[\d.]+m?s +\d+% +#+", plain), plain


def test_events_of_a_newer_tasuki_are_left_out_and_told_of(finished, here, tmp_path):
    shutil.copytree(finished.runs, tmp_path / "runs")
    path = tmp_path / "runs" / "exp" / "events" / "1.0.rank0.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join(line.replace("{", '{"format": 2, ', 1) for line in lines) + "\n")
    told = here(tmp_path, "why", "exp", "--json").json()
    assert f"{len(lines)} events of a newer tasuki" in told["notes"][0]
    assert told["attempts"][0]["sentence"].startswith("complete")


# -- time between attempts ------------------------------------------------------------------------
@pytest.fixture
def two_attempts(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def made(name: str = "exp", *, number: str | None = None) -> WrittenRun:
        """Two minutes of nothing between two attempts; with a number: of a job of Slurm."""
        clock = FakeClock()
        written = WrittenRun(tmp_path / "runs", clock, name)
        job = job_folder(tmp_path / "runs", "j")
        if number is not None:
            job.origin(1).parent.mkdir(parents=True)
            write_json(job.origin(1), {"format": 1, "number": number})
        for _ in range(2):
            written.begin(job="" if number is None else "j", is_alive=False)
            clock.sleep(5.0)
            written.end()
            clock.sleep(120.0)
        return written

    return made


@pytest.mark.parametrize("number", [None, "7"])
def test_a_run_that_never_was_in_a_queue_was_not_running_between_attempts(
    two_attempts, here, number
):
    folder = two_attempts(number=number).run.path.parents[1]
    word, other = ("queue", "not running") if number else ("not running", "queue")
    for verb in (("why", "exp"), ("report", "--md")):
        text = here(folder, *verb).out
        assert word in text and other not in text, verb
    page = here(folder, "report", "-o", "-").out
    assert f">{word}</text>" in page and f">{other}</text>" not in page
    assert '"queue": 120' in here(folder, "why", "exp", "--json").out, "scripts count on it"
