"""The end of an attempt as a supervisor writes it down for a loop of one's own."""

from __future__ import annotations

from pathlib import Path

from tasuki.integrations.place import Job, Place
from tasuki.integrations.watch import LoopWatch
from tasuki.runs.runs import CommandFolder, RunFolder
from tasuki.runs.values import Cause
from tasuki.testing import FakeClock


def test_a_wall_clock_that_is_set_forward_ends_no_attempt_and_a_new_deadline_is_heard(tmp_path):
    clock, files = FakeClock(), CommandFolder(tmp_path)
    job = Job(run=RunFolder(Path("runs/r")), claim=1, stage="s", files=files)
    watch = LoopWatch(clock, Place(job=job), is_kernel=False)
    files.deadline.write_text(str(clock.wall() + 1000))

    def left() -> float | None:
        watch._look_at = -1.0
        watch._look()
        return watch.remaining_s()

    assert left() == 1000
    clock.jump_wall(3600)
    assert left() == 1000 and watch.notice is Cause.NONE
    files.deadline.write_text(str(clock.wall() + 500))
    assert left() == 500
    files.deadline.write_text("never")
    assert left() is None
