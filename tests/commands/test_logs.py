"""`tasuki logs`: what a run printed, to its end and no longer."""

from __future__ import annotations

import pytest

from tasuki.commands.logs import follow_logs
from tasuki.testing import FakeClock
from tasuki.views.text import LogText
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


def test_progress_bars_and_lines_of_windows_are_lines_in_the_log(written, here, tmp_path):
    written.begin(job="j", is_alive=False)
    written.print("10%\r20%\r100%\nepoch 1\r\nepoch 2\r\n\x1b[2J")
    said = here(tmp_path, "logs", "exp")
    assert said.out == "10%\n20%\n100%\nepoch 1\nepoch 2\n\ufffd"


def test_the_end_of_a_line_may_come_in_two_parts():
    lines = LogText()
    assert [lines.take(part) for part in ("one\r", "\ntwo\r", "", "\n", "\r", "3\n", "\n")] == [
        *("one\n", "two\n", "", "", "\n", "3\n", "\n"),
    ]
