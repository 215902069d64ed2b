"""Go through a stage's order from its beginning: what should have been used, and how often.

The other side of used.py, for `tasuki audit`. Pure, and apart from the loader: it takes whole
stretches of steps out of the order, a loader seeks to one. 10⁷ samples take a few seconds.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from tasuki.data.order import Order
from tasuki.data.plain import Gathered
from tasuki.data.used import NONE, Used, words_of

Ints = NDArray[np.int64]
OnProgress = Callable[[int], None]
"""Samples gone through so far."""

_BLOCK_SAMPLES = 1 << 16
"""Large enough for numpy, small enough for the processor's cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """How often each sample of the bucket plan comes in (a part of) an epoch."""

    number: int
    is_whole: bool
    once: int
    repeated: int
    """Samples that come more than once."""
    skipped: int
    """Samples that do not come at all; of a part that is as it should be."""
    foreign: int
    """Samples that are not in the plan."""

    @property
    def is_right(self) -> bool:
        wrong = self.repeated + self.foreign + (self.skipped if self.is_whole else 0)
        return wrong == 0


@dataclass(frozen=True, slots=True)
class Recount:
    """What the order says."""

    used: dict[int, Used]
    """Of all steps before each of the wanted ones."""
    epochs: tuple[Epoch, ...]


def recount(
    order: Order | Gathered, wanted: Collection[int], on_progress: OnProgress = lambda _: None
) -> Recount:
    """Digests at these steps of the stage, and every epoch up to the last of them."""
    cuts = sorted(set(wanted))
    last = cuts[-1] if cuts else 0
    used, total = {0: NONE}, NONE
    members, epochs = _Members(order), []
    for epoch in range(-(-last // order.steps_per_epoch)):
        start = epoch * order.steps_per_epoch
        stop = min(last - start, order.steps_per_epoch)
        members.begin()
        for first, end in pairwise(sorted({*range(0, stop, _steps_at_once(order)), stop})):
            ids, counts = order.steps(epoch, first, end)
            members.count(ids)
            inside = cuts[bisect_right(cuts, start + first) : bisect_left(cuts, start + end)]
            at = [*inside, start + end]
            sums = _sums(start + first, ids, counts, at)
            used |= {step: total + found for step, found in zip(at, sums, strict=True)}
            total += sums[-1]
            on_progress(total.count)
        epochs.append(members.end(epoch, is_whole=stop == order.steps_per_epoch))
    return Recount({step: used[step] for step in cuts}, tuple(epochs))


def _steps_at_once(order: Order | Gathered) -> int:
    return max(1, _BLOCK_SAMPLES // order.effective_batch)


def _sums(first: int, ids: Ints, counts: Ints, cuts: list[int]) -> list[Used]:
    """Of a stretch of steps up to each of the cuts, the last of which is its end."""
    steps = np.arange(first, first + len(counts), dtype=np.int64)
    bounds = np.cumsum(counts)
    ends = [int(bounds[cut - first - 1]) for cut in cuts]
    lanes = [_prefixes(words, ends) for words in words_of(steps, counts, ids)]
    return [Used.of(end, sums) for end, *sums in zip(ends, *lanes, strict=True)]


def _prefixes(words: NDArray[np.uint64], ends: list[int]) -> list[int]:
    if len(ends) == 1:
        return [int(words.sum(dtype=np.uint64))]
    sums = np.cumsum(words, dtype=np.uint64)
    return [int(sums[end - 1]) for end in ends]


class _Members:
    """Counts samples, a byte for each of the data set."""

    def __init__(self, order: Order | Gathered) -> None:
        self._members = order.plan.members
        size = order.samples_per_epoch if self._members is None else int(self._members.max()) + 1
        self._counts = np.zeros(size, dtype=np.uint8)
        self._taken = 0

    def begin(self) -> None:
        self._counts.fill(0)
        self._taken = 0

    def count(self, ids: Ints) -> None:
        self._taken += len(ids)
        np.add.at(self._counts, ids[(ids >= 0) & (ids < len(self._counts))], np.uint8(1))

    def end(self, number: int, *, is_whole: bool) -> Epoch:
        counts = self._counts if self._members is None else self._counts[self._members]
        tally = np.bincount(counts, minlength=3)
        # What no member accounts for is of others; so is a byte that has gone round.
        inside = int(tally @ np.arange(len(tally)))
        return Epoch(
            number=number,
            is_whole=is_whole,
            once=int(tally[1]),
            repeated=int(tally[2:].sum()),
            skipped=int(tally[0]),
            foreign=self._taken - inside,
        )
