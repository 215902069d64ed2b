"""`tasuki logs`: what a run printed, to its end and no longer."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable

import pytest

from tasuki.commands.logs import follow_logs
from tasuki.testing import FakeClock
from tasuki.views.text import LogText
from tests.commands.projects import finish, until
from tests.harness.written import WrittenRun


class Meanwhile(FakeClock):
    """Something happens while a follower waits; a follower that waits for ever is told so."""

    act: Callable[[], object] = staticmethod(lambda: None)

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        self.act()
        assert self.monotonic() < 1100.0, "it hangs"


@pytest.fixture
def clock() -> Meanwhile:
    return Meanwhile()


def follow(written: WrittenRun, **more) -> list[str]:
    return [text for _, text in follow_logs(written.run, clock=written.clock, **more)]


@pytest.mark.parametrize("has_ended", [True, False])
def test_one_attempt_is_followed_to_its_end_while_a_later_one_runs(written, has_ended):
    """Also one that died without a word."""
    written.begin(job="j", is_alive=False)
    written.print("one\n")
    if has_ended:
        written.end(cause="preempted", has_progressed=True)
    written.begin(job="j")
    written.print("two\n")
    assert follow(written, attempt=1) == ["one\n"]


def test_a_run_is_followed_over_a_preemption(written, clock):
    written.begin(job="j", is_alive=False)
    written.print("first")
    written.end(cause="preempted", has_progressed=True)

    def go_on() -> None:
        written.begin(job="j")
        written.print("second")
        written.run.marker.touch()

    clock.act = go_on
    assert follow(written) == ["first", "second"]


def test_a_character_that_is_written_in_two_parts_is_followed_whole(written, clock):
    written.begin(job="j")
    written.run.logs.mkdir()
    path = written.run.logs / "j.1.log"
    path.write_bytes("né".encode()[:2])

    def write_the_rest() -> None:
        path.write_bytes("né".encode())
        written.run.marker.touch()

    clock.act = write_the_rest
    assert "".join(follow(written)) == "né"


def test_logs_that_are_deleted_while_they_are_followed_end_nothing(written, clock):
    written.begin(job="j")
    written.print("first")

    def delete() -> None:
        shutil.rmtree(written.run.logs, ignore_errors=True)
        written.run.marker.touch()

    clock.act = delete
    assert follow(written) == ["first"]


def test_progress_bars_and_lines_of_windows_are_lines_in_the_log(written, here, tmp_path):
    written.begin(job="j", is_alive=False)
    written.print("10%\r20%\r100%\nepoch 1\r\nepoch 2\r\n\x1b[2J")
    said = here(tmp_path, "logs", "exp")
    assert said.out == "10%\n20%\n100%\nepoch 1\nepoch 2\n\ufffd"
    # The end of a line may come in two parts.
    lines = LogText()
    assert [lines.take(part) for part in ("one\r", "\ntwo\r", "", "\n", "\r", "3\n", "\n")] == [
        *("one\n", "two\n", "", "", "\n", "3\n", "\n"),
    ]


def test_logs_follow_a_run_to_its_end(project):
    made = project(recipe="Gated", defaults__log_every="1 steps")
    gate = made.folder / "gate"
    gate.touch()
    process = made.start("run")
    until(lambda: made.step() >= 1, made.logs)
    follower = made.start("logs", "exp", "-f")
    gate.unlink()
    assert finish(process).code == 0
    said = finish(follower)
    assert said.code == 0 and "Starting stage one" in said.out, said
    assert "Finished stage one: 24 steps" in said.out


def test_terminal_escapes_in_what_a_run_printed_are_made_harmless(finished, here):
    raw = "".join(path.read_text() for path in finished.run().logs.glob("*.log"))
    assert "\x1b[31mred" in raw and "\x1b]0;owned\x07" in raw
    for words in (("logs", "exp"), ("logs", "exp", "-f"), ("logs", "exp/small")):
        said = here(finished.folder, *words)
        assert "red" in said.out and "done" in said.out, said
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f\x9b]", said.out), said
        assert "owned" not in said.out


def test_an_attempt_that_is_not_there_is_named_with_those_that_are(here, finished):
    said = here(finished.folder, "logs", "exp", "--attempt", "9")
    assert said.code == 2 and "has no attempt 9" in said.err and "there are: 1" in said.err, said
