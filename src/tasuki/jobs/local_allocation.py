"""The local scheduler's word, left as files in the job folder by the local backend.

Deadlines are kept on the host's monotonic clock, which all its processes share: a jump of the wall
clock changes nothing.
"""

from __future__ import annotations

from tasuki.clock import Clock
from tasuki.runs.atomic import FORMAT, read_json_or_none, write_json
from tasuki.runs.jobs import JobFolder
from tasuki.runs.values import Cause

_LOOK_EVERY_S = 2.0


class LocalAllocation:
    """One start of a job under the local backend."""

    def __init__(self, job: JobFolder, *, start: int, limit_s: float | None, clock: Clock) -> None:
        self._job = job
        self._start = start
        self._clock = clock
        self._planned_end = None if limit_s is None else clock.monotonic() + limit_s

    def remaining_s(self) -> float | None:
        value = read_json_or_none(self._job.deadline)
        end = self._planned_end
        if value is not None and value.get("start") == self._start:
            end = value.get("ends_monotonic")
        return None if end is None else float(end) - self._clock.monotonic()

    def patience_s(self, remaining_s: float | None) -> float:  # noqa: ARG002
        return _LOOK_EVERY_S

    @property
    def comes_back(self) -> bool:
        return False  # the backend reads the outcome

    def cause_of_notice(self) -> Cause:
        value = read_json_or_none(self._job.notice(self._start))
        return Cause(value["cause"]) if value else Cause.INTERRUPTED


def told_cause(job: JobFolder, start: int) -> Cause:
    """Why the local scheduler ended a start; NONE: it did not."""
    value = read_json_or_none(job.notice(start))
    return Cause(value["cause"]) if value else Cause.NONE


def set_deadline(job: JobFolder, *, start: int, ends_monotonic: float | None) -> None:
    write_json(job.deadline, {"format": FORMAT, "start": start, "ends_monotonic": ends_monotonic})


def read_deadline(job: JobFolder, start: int) -> float | None:
    """On the monotonic clock of this host; None: no limit."""
    value = read_json_or_none(job.deadline)
    if value is None or value.get("start") != start or value.get("ends_monotonic") is None:
        return None
    return float(value["ends_monotonic"])


def give_cause(job: JobFolder, *, start: int, cause: Cause) -> None:
    """Written before the signal is sent, so that the supervisor can read why."""
    write_json(job.notice(start), {"format": FORMAT, "start": start, "cause": cause})
