"""`tasuki logs`: what a run printed, to its end and no longer."""

from __future__ import annotations

import pytest

from tasuki.actions.logs import follow_logs
from tasuki.testing import FakeClock
from tests.harness.written import WrittenRun


class Patience(FakeClock):
    """Who waits for ever is told so."""

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        assert self.monotonic() < 1100.0, "it hangs"


@pytest.fixture
def clock() -> Patience:
    return Patience()


@pytest.fixture
def written(tmp_path, clock, monkeypatch) -> WrittenRun:
    monkeypatch.chdir(tmp_path)
    return WrittenRun(tmp_path / "runs", clock)


def test_an_attempt_that_died_without_a_word_is_followed_to_its_end_while_a_later_one_runs(
    written, clock
):
    written.begin(job="j", is_alive=False)
    written.print("one\n")
    written.begin(job="j")
    written.print("two\n")
    assert list(follow_logs(written.run, clock=clock, attempt=1)) == [("j.1.log", "one\n")]
