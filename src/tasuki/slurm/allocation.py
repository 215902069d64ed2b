"""What Slurm says about the job that we are in: the time left, and why a signal came.

One `scontrol show job` answers both. The signal itself says nothing: a preemption, a time limit
and a `scancel` all come as TERM, and only a cancel must not be undone by a requeue.
"""

from __future__ import annotations

from typing import Protocol

from tasuki.clock import Clock
from tasuki.runs.values import Cause
from tasuki.slurm.client import Slurm, SlurmError
from tasuki.slurm.text import ShownJob

_AT_ITS_END_S = 2.0
"""Slurm counts whole seconds."""
_SELDOM_S, _OFTEN_S = 300.0, 15.0
"""A controller serves thousands of jobs; near the end an extension must be seen in time."""
_RUNNING = ("RUNNING", "CONFIGURING", "SUSPENDED")


class Allocation(Protocol):
    """One start of a job, as its scheduler sees it."""

    def remaining_s(self) -> float | None:
        """Seconds until the scheduler ends this start; None: no limit."""
        ...

    def patience_s(self, remaining_s: float | None) -> float:
        """How long to wait before it is asked again whether the end has moved."""
        ...

    @property
    def comes_back(self) -> bool:
        """Did it say, when it was last asked for a cause, that it starts this job again itself?"""
        ...

    def cause_of_notice(self) -> Cause:
        """Why a signal came."""
        ...


def cause_of(job: ShownJob, *, grace_s: float = 0.0) -> Cause:
    """Why this job was sent TERM, from how the controller shows it then. `grace_s` is its
    partition's: who ends a preempted job before that is a person.

    | cause | state | preempted | end | reason |
    | --- | --- | --- | --- | --- |
    | preempted, grace 0, requeued | COMPLETING | no | far in the future | |
    | preempted with a grace | RUNNING | yes | when the grace ends | |
    | preempted, cancelled | COMPLETING | yes | now | |
    | scancel in the grace | COMPLETING | yes | now, before the grace ends | |
    | time limit | COMPLETING | no | now | TimeLimit |
    | scancel | COMPLETING | no | now | |
    | another part of the job died; a signal by hand | RUNNING | no | at the limit | |
    """
    if job.preempted_at is not None:
        ends_early = job.ends is not None and job.ends < job.preempted_at + grace_s - _AT_ITS_END_S
        return Cause.CANCELLED if job.state == "COMPLETING" and ends_early else Cause.PREEMPTED
    if job.reason == "TimeLimit":
        return Cause.LIMIT
    if job.state in _RUNNING:
        return Cause.LOST  # srun takes the rest down; Slurm itself knows nothing of an end
    remaining = job.remaining_s
    if remaining is None or remaining > _AT_ITS_END_S:
        return Cause.PREEMPTED
    return Cause.CANCELLED


def is_coming_back(job: ShownJob) -> bool:
    """Has Slurm requeued it already? Then it is about to end with its end far in the future."""
    if job.state == "PENDING" or job.state.startswith("REQUEUE"):
        return True
    remaining = job.remaining_s
    return job.state == "COMPLETING" and (remaining is None or remaining > _AT_ITS_END_S)


class SlurmAllocation:
    """One start of a job under Slurm."""

    def __init__(
        self,
        slurm: Slurm,
        job: str,
        *,
        limit_s: float | None,
        surplus_s: float = 0.0,
        grace_s: float = 0.0,
        clock: Clock,
    ) -> None:
        """`limit_s` was planned: it counts where the controller is silent. `surplus_s` is what
        Slurm gives beyond it, because it counts in minutes."""
        self._surplus_s, self._grace_s = surplus_s, grace_s
        self._comes_back = False
        self._slurm, self._job = slurm, job
        self._clock = clock
        self._planned_end = None if limit_s is None else clock.monotonic() + limit_s

    def remaining_s(self) -> float | None:
        try:
            shown = self._slurm.show(self._job)
        except SlurmError:
            shown = None
        if shown is not None and shown.remaining_s is not None:
            return shown.remaining_s - self._surplus_s
        return None if self._planned_end is None else self._planned_end - self._clock.monotonic()

    def patience_s(self, remaining_s: float | None) -> float:
        if remaining_s is None:
            return _SELDOM_S
        return min(_SELDOM_S, max(_OFTEN_S, remaining_s / 4))

    @property
    def comes_back(self) -> bool:
        return self._comes_back

    def cause_of_notice(self) -> Cause:
        try:
            shown = self._slurm.show(self._job)
        except SlurmError:
            shown = None
        self._comes_back = shown is not None and is_coming_back(shown)
        # A job that was requeued although it was cancelled annoys; one that was lost costs days.
        return Cause.PREEMPTED if shown is None else cause_of(shown, grace_s=self._grace_s)
