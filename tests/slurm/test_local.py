"""What the local scheduler says: the deadline, its extension, and why a notice came."""

from __future__ import annotations

import random
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
    ours = allocation(job, clock)
    clock.sleep(600)
    assert ours.remaining_s() == 3000


def test_a_job_without_a_limit_has_no_end(job: JobFolder, clock: FakeClock) -> None:
    assert allocation(job, clock, limit_s=None).remaining_s() is None


def test_the_deadline_file_counts_more_than_the_plan(job: JobFolder, clock: FakeClock) -> None:
    ours = allocation(job, clock)
    set_deadline(job, start=1, ends_monotonic=5100.0)
    assert ours.remaining_s() == 100
    clock.sleep(40)
    assert ours.remaining_s() == 60


def test_an_extension_is_seen_at_the_next_question(job: JobFolder, clock: FakeClock) -> None:
    ours = allocation(job, clock)
    set_deadline(job, start=1, ends_monotonic=5100.0)
    assert ours.remaining_s() == 100
    set_deadline(job, start=1, ends_monotonic=5100.0 + 7200)
    assert ours.remaining_s() == 7300
    set_deadline(job, start=1, ends_monotonic=5050.0)
    assert ours.remaining_s() == 50


def test_a_limit_may_be_lifted_altogether(job: JobFolder, clock: FakeClock) -> None:
    ours = allocation(job, clock)
    set_deadline(job, start=1, ends_monotonic=None)
    assert ours.remaining_s() is None


def test_the_deadline_of_another_start_does_not_count(job: JobFolder, clock: FakeClock) -> None:
    set_deadline(job, start=1, ends_monotonic=4000.0)
    assert allocation(job, clock, start=2).remaining_s() == 3600


def test_a_deadline_that_has_passed_is_negative_not_none(job: JobFolder, clock: FakeClock) -> None:
    ours = allocation(job, clock, limit_s=10)
    clock.sleep(15)
    assert ours.remaining_s() == -5


def test_jumps_of_the_wall_clock_change_nothing(job: JobFolder, clock: FakeClock) -> None:
    planned, filed = allocation(job, clock, start=1), allocation(job, clock, start=2)
    set_deadline(job, start=2, ends_monotonic=6000.0)
    dice = random.Random(7)
    for second in range(1, 500):
        clock.sleep(1)
        clock.jump_wall(dice.choice([-3600, 3600]))
        assert (planned.remaining_s(), filed.remaining_s()) == (3600 - second, 1000 - second)


@pytest.mark.parametrize(
    "cause", [Cause.PREEMPTED, Cause.LIMIT, Cause.INTERRUPTED, Cause.CANCELLED]
)
def test_the_cause_of_a_notice_is_the_one_that_was_given(
    job: JobFolder, clock: FakeClock, cause: Cause
) -> None:
    give_cause(job, start=1, cause=cause)
    assert allocation(job, clock).cause_of_notice() is cause


def test_a_signal_that_nobody_explained_was_a_person_s(job: JobFolder, clock: FakeClock) -> None:
    assert allocation(job, clock).cause_of_notice() is Cause.INTERRUPTED


def test_the_cause_of_an_earlier_start_s_notice_does_not_count(
    job: JobFolder, clock: FakeClock
) -> None:
    give_cause(job, start=1, cause=Cause.PREEMPTED)
    assert allocation(job, clock, start=2).cause_of_notice() is Cause.INTERRUPTED
