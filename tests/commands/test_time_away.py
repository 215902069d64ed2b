"""What lies between two attempts is a queue's only where there was one."""

from __future__ import annotations

import pytest

from tasuki.commands.report import gather_report
from tasuki.runs.atomic import write_json
from tasuki.runs.jobs import job_folder
from tasuki.testing import FakeClock
from tasuki.views.report import render
from tests.harness.written import WrittenRun


@pytest.fixture
def make(tmp_path, monkeypatch):
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


def told(written: WrittenRun, here, *verb: str) -> str:
    said = here(written.run.path.parents[1], *verb)
    assert said.code == 0, said
    return said.out


@pytest.mark.parametrize("number", [None, "7"])
def test_a_run_that_never_was_in_a_queue_was_not_running_between_attempts(make, here, number):
    written = make(number=number)
    word, other = ("queue", "not running") if number else ("not running", "queue")
    for verb in (("why", "exp"), ("report", "--md")):
        text = told(written, here, *verb)
        assert word in text and other not in text, verb
    page = told(written, here, "report", "-o", "-")
    assert f">{word}</text>" in page and f">{other}</text>" not in page
    assert '"queue": 120' in told(written, here, "why", "exp", "--json"), "scripts count on it"


def test_a_table_of_runs_of_which_one_was_in_a_queue_calls_it_so(make):
    runs = [make("one").run, make("two", number="7").run]
    report = gather_report(runs[0].path.parent, runs, now=FakeClock().wall())
    text = render(report, "md")
    assert "| queue |" in text and "not running" not in text
