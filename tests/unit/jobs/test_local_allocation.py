"""What the local scheduler says: the deadline, its extension, and why a notice came."""

from __future__ import annotations

from pathlib import Path

import pytest

from tasuki.jobs.local_allocation import LocalAllocation, give_cause, set_deadline
from tasuki.runs.jobs import JobFolder, job_folder
from tasuki.runs.values import Cause
from tasuki.slurm.allocation import Allocation
from tasuki.testing import FakeClock


@pytest.fixture
def job(tmp_path: Path) -> JobFolder:
    job = job_folder(tmp_path, "plan-01")
    job.path.mkdir(parents=True)
    return job


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(monotonic=5000.0)


def allocation(
    job: JobFolder, clock: FakeClock, *, start: int = 1, limit_s: float | None = 3600.0
) -> Allocation:
    return LocalAllocation(job, start=start, limit_s=limit_s, clock=clock)


def test_the_planned_limit_counts_where_the_scheduler_is_silent(
    job: JobFolder, clock: FakeClock
) -> None:
    ours, short = allocation(job, clock), allocation(job, clock, limit_s=10)
    clock.sleep(600)
    assert ours.remaining_s() == 3000
    assert short.remaining_s() == -590, "one that has passed is negative"
    assert allocation(job, clock, limit_s=None).remaining_s() is None


def test_the_deadline_file_of_this_start_counts_more_than_the_plan_whenever_it_is_moved(
    job: JobFolder, clock: FakeClock
) -> None:
    ours, later = allocation(job, clock), allocation(job, clock, start=2)
    set_deadline(job, start=1, ends_monotonic=5100.0)
    assert (ours.remaining_s(), later.remaining_s()) == (100, 3600)
    clock.sleep(40)
    assert ours.remaining_s() == 60
    for moved, remaining_s in ((12_300.0, 7260), (5050.0, 10), (None, None)):
        set_deadline(job, start=1, ends_monotonic=moved)
        assert ours.remaining_s() == remaining_s


def test_jumps_of_the_wall_clock_change_nothing(job: JobFolder, clock: FakeClock) -> None:
    planned, filed = allocation(job, clock, start=1), allocation(job, clock, start=2)
    set_deadline(job, start=2, ends_monotonic=6000.0)
    for second in range(1, 50):
        clock.sleep(1)
        clock.jump_wall(-3600 if second % 2 else 3600)
        assert (planned.remaining_s(), filed.remaining_s()) == (3600 - second, 1000 - second)


@pytest.mark.parametrize(
    "cause", [Cause.PREEMPTED, Cause.LIMIT, Cause.INTERRUPTED, Cause.CANCELLED]
)
def test_the_cause_of_a_notice_is_the_one_that_this_start_was_given_else_a_person_s(
    job: JobFolder, clock: FakeClock, cause: Cause
) -> None:
    assert allocation(job, clock).cause_of_notice() is Cause.INTERRUPTED
    give_cause(job, start=1, cause=cause)
    assert allocation(job, clock).cause_of_notice() is cause
    assert allocation(job, clock, start=2).cause_of_notice() is Cause.INTERRUPTED
