"""When things are due during training: saves, log lines, validations."""

from __future__ import annotations

import math

from tasuki.spec.values import Every

AUTO_SAVE_S = 600.0
_AUTO_SHORTEST_S = 5.0
_AUTO_COST = 20.0
"""Automatic saves at epoch ends keep at least 20 × their own cost apart: 5 % at the most."""
NEVER = math.inf


def period_in_steps(every: Every, steps_per_epoch: int) -> float:
    """How many steps apart; NEVER where the period is not counted in steps."""
    if every.unit == "steps":
        return max(1.0, float(int(every.count)))
    if every.unit == "epochs":
        return max(1.0, float(round(every.count * steps_per_epoch)))
    return NEVER


def next_multiple(step: int, period: float) -> float:
    """The next step count after `step` at which something of this period is due."""
    return NEVER if period == NEVER else (step // period + 1) * period


class SaveRhythm:
    """When the next save is due.

    By steps it is the same on all ranks; by time rank 0 asks for it and the ranks agree.
    """

    def __init__(self, every: Every, *, steps_per_epoch: int, now: float) -> None:
        self.period = period_in_steps(every, steps_per_epoch)
        self._every = every
        self._steps_per_epoch = steps_per_epoch
        self._saved_at = now
        self._cost = 0.0

    def saved(self, *, now: float, cost_s: float) -> None:
        self._saved_at, self._cost = now, cost_s

    def is_due_by_time(self, step: int, now: float) -> bool:
        past = now - self._saved_at
        if self._every.unit == "seconds":
            return past >= self._every.count
        if self._every.unit == "auto":
            shortest = max(_AUTO_SHORTEST_S, _AUTO_COST * self._cost)
            is_epoch_end = step % self._steps_per_epoch == 0
            return past >= AUTO_SAVE_S or (is_epoch_end and past >= shortest)
        return False
