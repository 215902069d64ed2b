"""What a report tells, from folders that are written by hand."""

from __future__ import annotations

import json

import pytest

from tasuki.commands.board import RunsSource
from tasuki.commands.curves import read_curves
from tasuki.commands.report import gather_report
from tasuki.runs.control import Word, say
from tasuki.testing import FakeClock
from tasuki.views.report import MOST_DRAWN, render
from tests.harness.written import WrittenRun


@pytest.fixture
def written(tmp_path) -> WrittenRun:
    return WrittenRun(tmp_path / "runs", FakeClock())


def report_of(written: WrittenRun, form: str = "html") -> str:
    run = written.run
    report = gather_report(run.path.parent, [run], now=written.clock.wall())
    return render(report, form)


@pytest.mark.parametrize("form", ["html", "md"])
def test_only_columns_of_tasuki_are_durations_and_shares_whatever_results_are_called(written, form):
    written.begin()
    results = {"latency_s": "NaN", "samples_per_s": 1024.5, "goodput": "NaN", "wall_s": 75.25}
    written.finish(metrics=results)
    text = report_of(written, form)
    assert "1024" in text and "17m" not in text and "NaN" in text
    assert "75.25" in text and "1m15" not in text


@pytest.mark.parametrize("form", ["html", "md"])
def test_settings_that_differ_between_runs_are_listed_and_no_others(written, form):
    runs = written.run.path.parent
    other = WrittenRun(runs, written.clock, "other", settings=["lr=0.25", "cluster.gpus=2"])
    for run in (written, other):
        run.begin()
    report = gather_report(runs, [written.run, other.run], now=written.clock.wall())
    text = render(report, form)
    assert "Differing settings" in text and "train lr" in text and "0.25" in text
    assert "cluster gpus" in text and "train command" not in text
    assert "Differing settings" not in report_of(written, form)


SAID = "HTTPError: 401 for GET https://me:hunter2@host/x?api_key=sk-hunter2"


def crash(written: WrittenRun) -> None:
    """An attempt that ended with an address in its error, and a person's word after it."""
    written.begin(job="j")
    written.tell("warning", text=SAID)
    written.tell("worker-started", stage="train", phase="train")
    written.end(ending="failed", cause="none", message=SAID)
    say(written.run, Word.FAIL, reason=SAID, hint=SAID, claim=1)


@pytest.mark.parametrize("form", ["html", "md"])
def test_a_page_to_mail_holds_no_secret_that_an_error_told(written, form):
    crash(written)
    text = report_of(written, form)
    assert "HTTPError: 401" in text and "hunter2" not in text


def test_nor_does_the_board_in_its_list_its_stories_and_its_events(written):
    crash(written)
    source = RunsSource(runs=written.run.path.parent, clock=written.clock)
    told = [source.summary("exp"), source.detail("exp"), source.events("exp", most=9)]
    for one in map(json.dumps, told):
        assert "HTTPError: 401" in one and "hunter2" not in one


@pytest.mark.parametrize(
    ("words", "num"),
    [(["--csv"], 0), (["--md"], 0), (["-o", "report.html"], MOST_DRAWN), (["--json"], 30)],
)
def test_lines_of_metrics_are_read_only_of_runs_whose_curves_are_shown(
    tmp_path, here, monkeypatch, words, num
):
    monkeypatch.chdir(tmp_path)
    for number in range(30):
        WrittenRun(tmp_path / "runs", FakeClock(), f"run{number:02}").begin()
    read: list[str] = []

    def count(run, **more):
        read.append(run.name)
        return read_curves(run, **more)

    monkeypatch.setattr("tasuki.commands.report.read_curves", count)
    assert here(tmp_path, "report", *words).code == 0
    assert read == [f"run{number:02}" for number in range(num)]
