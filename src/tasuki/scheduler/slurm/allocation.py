"""What Slurm says about the job that we are in: the time left, and why a signal came.

One `scontrol show job` answers both. The signal itself says nothing: a preemption, a time limit
and a `scancel` all come as TERM, and only a cancel must not be undone by a requeue.
"""

from __future__ import annotations

from tasuki.clock import Clock
from tasuki.relay.values import Cause
from tasuki.scheduler.slurm.client import Slurm, SlurmError
from tasuki.scheduler.slurm.text import ShownJob

_AT_ITS_END_S = 2.0
"""Slurm counts whole seconds."""
_RUNNING = ("RUNNING", "CONFIGURING", "SUSPENDED")


def cause_of(job: ShownJob) -> Cause:
    """Why this job was sent TERM, from how the controller shows it then.

    | cause | state | preempted | end | reason |
    | --- | --- | --- | --- | --- |
    | preempted, grace 0, requeued | COMPLETING | no | far in the future | |
    | preempted with a grace | RUNNING | yes | when the grace ends | |
    | preempted, cancelled | COMPLETING | yes | now | |
    | time limit | COMPLETING | no | now | TimeLimit |
    | scancel | COMPLETING | no | now | |
    | a signal sent by hand | RUNNING | no | at the limit | |
    """
    if job.is_preempted:
        return Cause.PREEMPTED
    if job.reason == "TimeLimit":
        return Cause.LIMIT
    if job.state in _RUNNING:
        return Cause.INTERRUPTED  # somebody sent us a signal; the job itself goes on
    remaining = job.remaining_s
    if remaining is None or remaining > _AT_ITS_END_S:
        return Cause.PREEMPTED
    return Cause.CANCELLED


class SlurmAllocation:
    """One start of a job under Slurm."""

    def __init__(self, slurm: Slurm, job: str, *, limit_s: float | None, clock: Clock) -> None:
        """`limit_s` was planned: it counts where the controller is silent."""
        self._slurm, self._job = slurm, job
        self._clock = clock
        self._planned_end = None if limit_s is None else clock.monotonic() + limit_s

    def remaining_s(self) -> float | None:
        try:
            shown = self._slurm.show(self._job)
        except SlurmError:
            shown = None
        if shown is not None and shown.remaining_s is not None:
            return shown.remaining_s
        return None if self._planned_end is None else self._planned_end - self._clock.monotonic()

    def cause_of_notice(self) -> Cause:
        try:
            shown = self._slurm.show(self._job)
        except SlurmError:
            shown = None
        # A job that was requeued although it was cancelled annoys; one that was lost costs days.
        return Cause.PREEMPTED if shown is None else cause_of(shown)
