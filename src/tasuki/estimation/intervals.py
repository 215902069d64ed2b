"""How far apart saves, log lines and validations are, and so how many a stage has. Pure.

`save.every: auto` follows Young and Daly: with a save that costs `c` and work that is lost once in
`m` seconds, the least is lost, to saves and to losses, when saves are √(2 c m) apart. Both are
measured: `c` is how long training stands still for a save, `m` comes from how attempts of this run
ended so far.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tasuki.runs.view import Losses
from tasuki.spec.values import Every
from tasuki.units import format_seconds

NEVER = math.inf
SHORTEST_S = 5.0
LONGEST_S = 1800.0
_STALL = 0.01
"""Of the time at the most is spent standing still for saves."""
_SLOWER = 0.05
"""What a save in the background costs the steps beside it, as a share of its time."""
_PRIOR_S = 86400.0
"""Before anything is observed: one loss a day."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveCost:
    """Measured."""

    blocked_s: float
    """How long training stands still."""
    total_s: float
    """Until it is durable."""


@dataclass(frozen=True, slots=True)
class Interval:
    seconds: float
    reason: str


def choose_interval(
    cost: SaveCost, losses: Losses, *, step_s: float = 0.0, notice_s: float | None = None
) -> Interval:
    """How far apart automatic saves are."""
    fits = notice_s is None or step_s + cost.total_s <= notice_s
    events = losses.kills + (0 if fits else losses.preemptions)
    between = (losses.lived_s + _PRIOR_S) / (events + 1)
    price = cost.blocked_s + _SLOWER * cost.total_s
    best = math.sqrt(2 * price * between)
    least = max(SHORTEST_S, cost.blocked_s / _STALL, 1.5 * cost.total_s)
    seconds = max(least, min(best, LONGEST_S))
    words = (
        f"a save stops training for {format_seconds(cost.blocked_s)} and takes "
        f"{format_seconds(cost.total_s)}; one kill is expected in {format_seconds(between)} "
        f"({events} so far)"
    )
    if seconds == least and best < least:
        words += "; more often would cost more than 1 % of the time, or never end"
    if not fits:
        words += f"; step and save do not fit a notice of {format_seconds(notice_s or 0.0)}"
    return Interval(seconds, words)


def num_validations(every: Every, *, steps: int, steps_per_epoch: int) -> int:
    """Before the first step, at every period, and after the last step."""
    period = period_in_steps(every, steps_per_epoch)
    if period == NEVER:
        return 0
    return 1 + math.ceil(steps / period)


def num_saves(
    every: Every, *, steps: int, steps_per_epoch: int, train_s: float, cost: SaveCost
) -> float:
    """During the steps of a stage that nobody disturbs; the checkpoint at its end comes on top."""
    if every.unit == "seconds":
        return train_s // every.count if every.count > 0 else 0.0
    if every.unit == "auto":
        return train_s // choose_interval(cost, Losses()).seconds
    return max(0, math.ceil(steps / period_in_steps(every, steps_per_epoch)) - 1)
