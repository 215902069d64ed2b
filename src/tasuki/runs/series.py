"""Numbers over steps and time, many of them, and a picture's worth of them. Pure.

A series is appended to as a run goes on, cut back where an attempt resumes from an earlier step,
and thinned for whoever draws it: each bucket keeps its lowest and its highest value, so that no
peak is lost. What is no finite number is a gap. Plain arrays: whoever looks must not import numpy.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from math import inf, isnan
from operator import lt
from typing import Any

_BLOCK = 64
"""Rows whose extremes are found once, when they are whole; later looks take these alone."""


class Series:
    """Values by step, in the order of steps; one number each."""

    __slots__ = ("_extremes", "_gaps", "_is_sorted", "steps", "t", "values")

    def __init__(self) -> None:
        self.steps = array("q")
        self.t = array("d")
        self.values = array("d")
        """NaN: a gap."""
        self._gaps = array("q")
        self._extremes = array("q")
        """Of each whole block the places of its lowest and highest value; -1: it has none."""
        self._is_sorted = True

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def is_empty(self) -> bool:
        """Has it no number at all?"""
        return len(self._gaps) == len(self.steps)

    def add(self, step: int, t: float, value: float) -> None:
        if self.steps and step <= self.steps[-1]:
            if step == self.steps[-1]:  # told again: the later word counts
                self._cut(len(self.steps) - 1)
            else:
                self._is_sorted = False
        if isnan(value):
            self._gaps.append(len(self.steps))
        self.steps.append(step)
        self.t.append(t)
        self.values.append(value)

    def extend(self, steps: Sequence[int], t: Sequence[float], values: Sequence[float]) -> None:
        """Many rows; at once where they follow each other, as they nearly always do."""
        is_behind = not self.steps or steps[0] > self.steps[-1]
        if not is_behind or isnan(sum(values)) or not all(map(lt, steps, steps[1:])):
            for row in zip(steps, t, values, strict=True):
                self.add(*row)
            return
        self.steps.extend(steps)
        self.t.extend(t)
        self.values.extend(values)

    def drop_beyond(self, step: int) -> int:
        """How many rows of later steps are void now."""
        self._sort()
        keep = bisect_right(self.steps, step)
        dropped = len(self.steps) - keep
        self._cut(keep)
        return dropped

    def _cut(self, keep: int) -> None:
        del self.steps[keep:], self.t[keep:], self.values[keep:]
        del self._extremes[2 * (keep // _BLOCK) :]
        while self._gaps and self._gaps[-1] >= keep:
            self._gaps.pop()

    def _sort(self) -> None:
        """Lines that came out of order; of one step the later line counts."""
        if self._is_sorted:
            return
        rows = dict(zip(self.steps, zip(self.t, self.values, strict=True), strict=True))
        self.__init__()  # type: ignore[misc]
        for step in sorted(rows):
            self.add(step, *rows[step])

    def between(self, since: int | None, until: int | None) -> tuple[int, int]:
        """The places of the rows beyond a step, up to another."""
        self._sort()
        first = 0 if since is None else bisect_right(self.steps, since)
        last = len(self.steps) if until is None else bisect_right(self.steps, until)
        return first, max(first, last)

    def thin(self, points: int, *, since: int | None = None, until: int | None = None) -> list[int]:
        """Places of at most so many rows between two steps: all, or the first, the last, and of
        each bucket the lowest, the highest and the first gap."""
        first, last = self.between(since, until)
        if last - first <= points:
            return list(range(first, last))
        of_bucket = 3 if self._gaps else 2
        if points < of_bucket + 2:
            return [last - 1] if points > 0 else []
        self._look_at_blocks()
        kept = {first, last - 1}
        for begin, end in _buckets(first, last, (points - 2) // of_bucket):
            kept.update(self._notable(begin, end))
        return sorted(kept)

    def _look_at_blocks(self) -> None:
        for number in range(len(self._extremes) // 2, len(self.values) // _BLOCK):
            found = self._find_extremes(number * _BLOCK, (number + 1) * _BLOCK)
            self._extremes.extend(found or (-1, -1))

    def _notable(self, begin: int, end: int) -> Iterator[int]:
        first, last = -(-begin // _BLOCK), end // _BLOCK
        if last - first < 2:
            found = self._find_extremes(begin, end) or ()
        else:
            before = self._find_extremes(begin, first * _BLOCK) or ()
            behind = self._find_extremes(last * _BLOCK, end) or ()
            inside = (at for at in self._extremes[2 * first : 2 * last] if at >= 0)
            found = (*before, *inside, *behind)
        if found:
            yield min(found, key=self.values.__getitem__)
            yield max(found, key=self.values.__getitem__)
        yield from self._first_gap(begin, end)

    def _first_gap(self, begin: int, end: int) -> Iterator[int]:
        at = bisect_left(self._gaps, begin)
        if at < len(self._gaps) and self._gaps[at] < end:
            yield self._gaps[at]

    def _find_extremes(self, begin: int, end: int) -> tuple[int, ...] | None:
        """Places of the lowest and the highest; None: there is no number."""
        part = self.values[begin:end]
        if any(True for _ in self._first_gap(begin, end)):  # NaN is below and above nothing
            known = [at for at in range(begin, end) if not isnan(self.values[at])]
            if not known:
                return None
            key = self.values.__getitem__
            return min(known, key=key), max(known, key=key)
        return (begin + part.index(min(part)), begin + part.index(max(part))) if part else None


def _buckets(first: int, last: int, num: int) -> Iterator[tuple[int, int]]:
    length = last - first
    for number in range(num):
        yield first + length * number // num, first + length * (number + 1) // num


def spelled(values: array[float], places: Sequence[int]) -> list[float | None]:
    """For JSON, which has no NaN."""
    return [None if isnan(value := values[place]) else value for place in places]


def as_number(value: Any) -> float | None:
    """A finite number; None: words, NaN, infinities, or something else."""
    if type(value) is float:
        return value if -inf < value < inf else None
    if type(value) is int:
        return float(value) if -(1 << 53) < value < 1 << 53 else None
    return None
