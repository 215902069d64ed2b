"""From numbers to places on paper, and the round numbers beside an axis. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

_FALLS = 100.0
"""A loss that falls by more than this is a flat line without logarithms."""


_LARGEST = 1e300
"""What is beyond leaves no room for an axis; it is drawn at the edge."""


@dataclass(frozen=True, slots=True)
class Scale:
    """Of one axis: [low, high] → [0, 1]."""

    low: float
    high: float
    is_log: bool = False

    def at(self, value: float) -> float:
        if self.is_log:
            value = math.log10(value) if value > 0 else math.log10(self.low)
            low, high = math.log10(self.low), math.log10(self.high)
        else:
            low, high = self.low, self.high
        return min(1.5, max(-0.5, (value - low) / (high - low)))

    def ticks(self, most: int) -> list[float]:
        return _decades(self.low, self.high, most) if self.is_log else _round(self, most)


def scale_of(values: Iterable[float | None], *, may_be_log: bool = False) -> Scale | None:
    """None: there is no number at all."""
    known = [value for value in values if value is not None and abs(value) <= _LARGEST]
    if not known:
        return None
    low, high = min(known), max(known)
    if may_be_log and low > 0 and high / low > _FALLS:
        return Scale(10 ** math.floor(math.log10(low)), 10 ** math.ceil(math.log10(high)), True)
    room = (high - low) * 0.05 or abs(high) * 0.1 or 1.0
    return Scale(0.0 if 0 <= low < room else low - room, high + room)


def _round(scale: Scale, most: int) -> list[float]:
    span = scale.high - scale.low
    unit = 10.0 ** math.floor(math.log10(span / most))
    step = next(unit * by for by in (1, 2, 5, 10, 20) if span / (unit * by) <= most)
    first = math.ceil(scale.low / step - 1e-9)
    count = int((scale.high - first * step) / step + 1e-9) + 1
    return [round(step * (first + n), 12) for n in range(count)]


def _decades(low: float, high: float, most: int) -> list[float]:
    first, last = round(math.log10(low)), round(math.log10(high))
    every = max(1, math.ceil((last - first) / most))
    return [10.0**power for power in range(first, last + 1, every)]
