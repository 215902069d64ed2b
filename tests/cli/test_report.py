"""What a report tells, from folders that are written by hand."""

from __future__ import annotations

import pytest

from tasuki.actions.report import gather_report
from tasuki.testing import FakeClock
from tasuki.views.report import render
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
