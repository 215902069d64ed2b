"""When the next save of a stage is due. Pure; how far apart they are: estimation/intervals.py."""

from __future__ import annotations

from tasuki.estimation.intervals import NEVER, period_in_steps
from tasuki.spec.values import Every

_UNMEASURED_S = 60.0
"""Until a save was measured."""


class SaveRhythm:
    """When the next save is due.

    By steps it is the same on all ranks; by time rank 0 asks for it and the ranks agree.
    """

    def __init__(self, every: Every, *, steps_per_epoch: int, now: float) -> None:
        self.period = period_in_steps(every, steps_per_epoch)
        self.is_auto = every.unit == "auto"
        self.interval_s = every.count if every.unit == "seconds" else NEVER
        """For `auto`: chosen by `choose_interval` as soon as a save was measured."""
        if self.is_auto:
            self.interval_s = _UNMEASURED_S
        self._saved_at = now

    def begun(self, now: float) -> None:
        """A save has been begun."""
        self._saved_at = now

    def is_due_by_time(self, now: float) -> bool:
        return now - self._saved_at >= self.interval_s
