"""How far a plan's end may lie from what is expected: its 10th and 90th percentile.

Pure and cheap: the same order is run through a few hundred times with other lengths (Monte Carlo,
seeded), because the end of lanes that wait for each other is the maximum of sums, which no formula
adds up: errors of one chain partly cancel out, and the largest of several chains ends later than
any of them is expected to. A stage's length is log-normal, with its estimate as the median and its
error bar as the 90th percentile. Half of the variance is common to all stages: a slow node, or a
wrong data sheet, is so for each of them; drawn apart they would cancel out too well. Starts and
saves vary as the steps do: a busy file system is slow at both.

What has no error bar (`expect`) counts as exact. Limits are not looked at: what outlasts its job
goes on in the next one, which costs a start more than is counted here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from random import Random

from tasuki.planning.laid import LaidJob, Leg

_Z90 = 1.2815515655446004
"""Standard deviations from the median to the 90th percentile."""
_COMMON = 0.5
_MOST_RUNS = 400
_LEAST_RUNS = 50
_EFFORT = 400_000
"""Legs that are added up."""


def spread_of_end(jobs: Sequence[LaidJob]) -> tuple[float, float] | None:
    """(10th, 90th) percentile in seconds from the plan's beginning; None: no source tells."""
    legs = _joined(jobs)
    if not any(leg.error for leg in legs):
        return None
    sigmas = [math.log1p(leg.error) / _Z90 if leg.error else 0.0 for leg in legs]
    runs = max(_LEAST_RUNS, min(_MOST_RUNS, _EFFORT // len(legs)))
    random = Random(0)
    ends = sorted(_end(legs, sigmas, random) for _ in range(runs))
    return ends[runs // 10], ends[runs - 1 - runs // 10]


def _joined(jobs: Sequence[LaidJob]) -> list[Leg]:
    """All legs; a leg of no length stands for the end of each job."""
    legs: list[Leg] = []
    gates: list[int] = []
    jobs_behind = [(*job.after, *job.held_by) for job in jobs]
    order = _in_order(jobs_behind)
    gates = [0] * len(jobs)
    for number in order:
        first = len(legs)
        behind = tuple(gates[before] for before in jobs_behind[number])
        for leg in jobs[number].legs:
            after = tuple(first + other for other in leg.after)
            legs.append(replace(leg, after=(*after, *behind)))
        gates[number] = len(legs)
        ends = tuple(range(first, len(legs)))
        legs.append(Leg(fixed_s=0.0, loose_s=0.0, error=None, after=ends))
    return legs


def _in_order(behind: Sequence[tuple[int, ...]]) -> list[int]:
    """No job before those it comes behind."""
    placed: dict[int, None] = {}
    stack = list(range(len(behind) - 1, -1, -1))
    while stack:
        number = stack[-1]
        missing = [other for other in behind[number] if other not in placed]
        if missing and number not in placed:
            stack += missing
            continue
        placed[stack.pop()] = None
    return list(placed)


def _end(legs: Sequence[Leg], sigmas: Sequence[float], random: Random) -> float:
    common = random.gauss(0.0, math.sqrt(_COMMON))
    own = math.sqrt(1 - _COMMON)
    ends: list[float] = []
    for leg, sigma in zip(legs, sigmas, strict=True):
        factor = math.exp(sigma * (common + own * random.gauss(0.0, 1.0))) if sigma else 1.0
        start = max((ends[before] for before in leg.after), default=0.0)
        ends.append(start + (leg.fixed_s + leg.loose_s) * factor)
    return max(ends)
