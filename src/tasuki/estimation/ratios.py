"""How many times quicker, and how surely: intervals of ratios from paired measurements.

Pure. Pairs (baseline, other) were measured right after each other, in random order, so whoever else
uses the machine enters both alike. Single pairs are off all the same, some by far: the estimate is
the median of all pairwise means of log ratios (Hodges and Lehmann), the interval that of Wilcoxon's
signed ranks. It assumes nothing but that noise is as likely to favour the one as the other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist, median

CONFIDENCE = 0.95
FEWEST_PAIRS = 6
"""With five the widest interval there is would hold 15 times of 16 only."""
_EXACT_UP_TO = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """Times of the baseline over times of the other: 1.2 is a step in 1/1.2 of the time."""

    value: float
    low: float
    high: float
    pairs: int

    @property
    def covers_one(self) -> bool:
        return self.low <= 1.0 <= self.high

    @property
    def width(self) -> float:
        """Half of the interval, as a share."""
        return math.sqrt(self.high / self.low) - 1.0


def ratio_of(pairs: Sequence[tuple[float, float]], *, confidence: float = CONFIDENCE) -> Ratio:
    """(baseline, other) times of each pair; at least FEWEST_PAIRS of them."""
    assert len(pairs) >= FEWEST_PAIRS, len(pairs)
    logs = [math.log(base / other) for base, other in pairs]
    means = sorted((a + b) / 2 for i, a in enumerate(logs) for b in logs[i:])
    left_out = _left_out(len(logs), confidence)
    return Ratio(
        value=math.exp(median(means)),
        low=math.exp(means[left_out]),
        high=math.exp(means[-1 - left_out]),
        pairs=len(logs),
    )


@lru_cache(maxsize=256)
def _left_out(num: int, confidence: float) -> int:
    """How many of the ordered pairwise means lie outside the interval, at either end."""
    tail = (1.0 - confidence) / 2
    if num > _EXACT_UP_TO:
        mean = num * (num + 1) / 4
        deviation = math.sqrt(num * (num + 1) * (2 * num + 1) / 24)
        return max(0, math.floor(mean + NormalDist().inv_cdf(tail) * deviation))
    ways = _signed_rank_ways(num)
    below = 0
    for rank_sum, count in enumerate(ways):
        below += count
        if below > tail * 2**num:
            return rank_sum
    raise AssertionError(num)


def _signed_rank_ways(num: int) -> list[int]:
    """In how many ways signs can be given to the ranks 1 … num so that the positive ones sum up to
    0, 1, 2, …"""
    ways = [1] + [0] * (num * (num + 1) // 2)
    for rank in range(1, num + 1):
        for total in range(len(ways) - 1, rank - 1, -1):
            ways[total] += ways[total - rank]
    return ways
