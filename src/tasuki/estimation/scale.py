"""How long a step takes with other data, from what steps of the same family took. Pure.

What a step has to do is its samples times their size. Where a past step had as much to do, its time
is taken. Between steps that had less and more, step = a + b · samples · size is fitted, with the
size squared where that fits better (a matrix, attention). From one step alone nobody knows how much
of it is fixed: the answer lies between all of it and nothing of it, and the error bar says so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from tasuki.estimation.past import Past

_ALIKE = 0.1
"""Samples of two kinds of steps: those of a bucket's last step are fewer, and dilute the mean."""
_APART = 1.5
"""Steps that have nearly as much to do tell by their noise what more of it would take."""
LEAST_ERROR = 0.1
"""Of what was fitted."""
_WIDER = 0.15
"""More error for each doubling beyond what was seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What a stage is to go through."""

    buckets: tuple[tuple[int | None, int], ...]
    """Size and number of samples of each; None: sizes are unknown or do not matter."""
    effective_batch: int

    def __post_init__(self) -> None:
        assert self.effective_batch > 0, self
        assert all(samples > 0 for _, samples in self.buckets), self

    @property
    def samples(self) -> int:
        return sum(samples for _, samples in self.buckets)

    @property
    def steps_per_epoch(self) -> int:
        return sum(-(-samples // self.effective_batch) for _, samples in self.buckets)


@dataclass(frozen=True, slots=True)
class Point:
    """A kind of step."""

    samples: float
    """On average: the last step of a bucket may have fewer."""
    size: float
    step_s: float

    def work(self, power: int) -> float:
        return float(self.samples * self.size**power)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaled:
    """The mean time of a step, and how sure."""

    step_s: float
    error: float
    """Relative half-width."""


def shape_of(past: Past) -> Shape | None:
    """None: the line does not tell."""
    if not past.effective_batch:
        return None
    told = tuple((bucket.size, bucket.samples) for bucket in past.buckets if bucket.samples)
    if not told and past.samples:
        told = ((None, past.samples),)
    return Shape(buckets=told, effective_batch=past.effective_batch) if told else None


def points_of(past: Past) -> list[Point]:
    """One for each bucket whose steps were timed; else one for the stage."""
    shape = shape_of(past)
    if shape is None:
        return []
    timed = [b for b in past.buckets if b.step_s and b.samples]
    if len(shape.buckets) == 1 or not timed:
        return [Point(*_mean_step(shape), past.mean_step_s)]
    # Means of the steps that were looked at, brought to what all steps took together.
    steps = [-(-b.samples // shape.effective_batch) for b in timed]
    together = sum((b.step_s or 0.0) * n for b, n in zip(timed, steps, strict=True)) / sum(steps)
    off = past.mean_step_s / together if len(timed) == len(past.buckets) else 1.0
    return [
        Point(b.samples / n, _size(b.size), (b.step_s or 0.0) * off)
        for b, n in zip(timed, steps, strict=True)
    ]


def scale_steps(pasts: Sequence[Past], shape: Shape) -> Scaled | None:
    """The mean step of a stage of this shape, as pasts of its family (newest first) tell."""
    alike = [past for past in pasts if _has_sizes(shape_of(past)) is _has_sizes(shape)]
    points = [point for past in alike for point in points_of(past)]
    if not points or not shape.steps_per_epoch:
        return None
    seconds = errors = 0.0
    for size, samples in shape.buckets:
        steps = -(-samples // shape.effective_batch)
        step_s, error = _step_at(points, samples / steps, _size(size))
        seconds += steps * step_s
        errors += steps * step_s * error
    return Scaled(step_s=seconds / shape.steps_per_epoch, error=errors / seconds)


def _has_sizes(shape: Shape | None) -> bool:
    """Steps whose sizes are known say nothing of steps whose sizes are not."""
    return shape is not None and all(size is not None for size, _ in shape.buckets)


def _mean_step(shape: Shape) -> tuple[float, float]:
    """(samples, size) of a step on average."""
    samples = shape.samples / shape.steps_per_epoch
    sizes = sum(_size(size) * number for size, number in shape.buckets)
    return samples, sizes / shape.samples


def _size(size: int | None) -> float:
    return float(size) if size else 1.0


def _step_at(points: Sequence[Point], samples: float, size: float) -> tuple[float, float]:
    """(seconds, relative error) of a step."""
    like = [
        point.step_s
        for point in points
        if point.size == size and abs(point.samples - samples) <= _ALIKE * samples
    ]
    if like:
        return like[0], 0.0  # the newest
    works = [point.work(1) for point in points]
    if max(works) < _APART * min(works):
        return _between(points[0], samples, size)
    sizes = {point.size for point in points}
    return _fitted(points, samples, size, powers=(1, 2) if len(sizes) > 2 else (1,))


def _between(point: Point, samples: float, size: float) -> tuple[float, float]:
    """From one step alone: somewhere between all of it fixed and all of it growing."""
    more, larger = samples / point.samples, size / point.size
    ends = [a * b for a in (1.0, more) for b in (1.0, larger, larger**2)]
    low, high = min(ends), max(ends)
    return point.step_s * (low + high) / 2, (high - low) / (high + low)


def _fitted(
    points: Sequence[Point], samples: float, size: float, *, powers: Sequence[int]
) -> tuple[float, float]:
    best: tuple[float, float] | None = None
    least = math.inf
    for power in powers:
        a, b = _fit([(point.work(power), point.step_s) for point in points])
        off = [abs((a + b * point.work(power)) / point.step_s - 1) for point in points]
        if median(off) < least:
            least = median(off)
            work = samples * size**power
            works = [point.work(power) for point in points]
            beyond = max(math.log2(work / max(works)), math.log2(min(works) / work), 0.0)
            best = a + b * work, max(LEAST_ERROR, *off) + _WIDER * beyond
    assert best is not None
    return best


def _fit(pairs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """a + b·x, both at least 0, with the least sum of squared relative errors."""
    w = [1 / y**2 for _, y in pairs]
    sw = sum(w)
    mx = sum(wi * x for wi, (x, _) in zip(w, pairs, strict=True)) / sw
    my = sum(wi * y for wi, (_, y) in zip(w, pairs, strict=True)) / sw
    top = sum(wi * (x - mx) * (y - my) for wi, (x, y) in zip(w, pairs, strict=True))
    below = sum(wi * (x - mx) ** 2 for wi, (x, _) in zip(w, pairs, strict=True))
    b = max(0.0, top / below) if below else 0.0
    a = my - b * mx
    if a >= 0:
        return a, b
    through = sum(wi * x * y for wi, (x, y) in zip(w, pairs, strict=True))
    return 0.0, through / sum(wi * x * x for wi, (x, _) in zip(w, pairs, strict=True))
