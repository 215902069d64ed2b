"""The clock as an argument: nothing below the command line asks the system for the time itself."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """What decisions may know about time."""

    def wall(self) -> float:
        """Seconds since the epoch: for people and for joining files of several hosts."""
        ...

    def monotonic(self) -> float:
        """Seconds that never jump: for deadlines and durations. One clock per host."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait."""
        ...


class SystemClock:
    """The real one."""

    wall = staticmethod(time.time)
    monotonic = staticmethod(time.monotonic)
    sleep = staticmethod(time.sleep)


def utc(seconds: float) -> str:
    """A wall-clock time as people and JSON readers want it."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
