"""A clock that stands still until a test moves it.

Passes the contract of `tasuki.clock.Clock` (tests/unit/test_clock.py), so whatever takes a clock
takes this one:

    clock = FakeClock()
    allocation = LocalAllocation(job, start=1, limit_s=3600, clock=clock)
    clock.sleep(600)                   # ten minutes pass at once
    assert allocation.remaining_s() == 3000
    clock.jump_wall(-3600)             # somebody set the date: monotonic time knows nothing of it
    assert allocation.remaining_s() == 3000
"""

from __future__ import annotations


class FakeClock:
    """Wall and monotonic time as two numbers; sleeping moves both and returns at once."""

    def __init__(self, *, wall: float = 1_700_000_000.0, monotonic: float = 1000.0) -> None:
        self._wall = wall
        self._monotonic = monotonic

    def wall(self) -> float:
        """Seconds since the epoch."""
        return self._wall

    def monotonic(self) -> float:
        """Seconds that never jump."""
        return self._monotonic

    def sleep(self, seconds: float) -> None:
        """Let time pass. Refuses a negative span, as `time.sleep` does."""
        if seconds < 0:
            raise ValueError("sleep length must be non-negative")
        self._wall += seconds
        self._monotonic += seconds

    def jump_wall(self, seconds: float) -> None:
        """Set the wall clock forward or back, as a person, NTP or daylight saving does."""
        self._wall += seconds
