"""Which samples a rank fetches in a step, micro-batch by micro-batch.

Joins the order (which samples a step has) with the split (who works on which of them). Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tasuki.data.fetch import Request
from tasuki.data.order import Order
from tasuki.data.split import micro_batches, share_of_rank, split_by_cost


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """A decision: from a step on, micro-batches of a bucket are at most so large."""

    bucket: int
    from_step: int
    most: int
    """Samples of a micro-batch; or what it may cost, where there are costs."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepSplit:
    """How the samples of a step become a rank's micro-batches."""

    rank: int = 0
    world: int = 1
    micro_batch: int
    """The most samples of a micro-batch."""
    costs: NDArray[np.int64] | None = None
    """Of every sample of the data set; None: the number of samples alone counts."""
    budget: int = 0
    """The most that a micro-batch may cost, where there are costs."""
    limits: tuple[Limit, ...] = ()
    """In the order in which they were decided; each holds from its step on, so that a step is
    split in the same way whenever it is done."""
    _by_bucket: dict[int, list[Limit]] = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        for limit in self.limits:
            self._by_bucket.setdefault(limit.bucket, []).append(limit)

    def most_at(self, step: int, bucket: int) -> int:
        """Samples of a micro-batch, or its cost. A decision ends those before it whose steps do not
        lie behind its own. Where an attempt went back and decided about an earlier step, both hold:
        the smaller one counts."""
        holding: list[Limit] = []
        for limit in self._by_bucket.get(bucket, ()):
            if limit.from_step <= step:
                holding = [one for one in holding if one.from_step > limit.from_step]
                holding.append(limit)
        most = self.micro_batch if self.costs is None else self.budget
        return min([most, *(limit.most for limit in holding)])

    def with_limit(self, limit: Limit) -> StepSplit:
        return replace(self, limits=(*self.limits, limit))

    def at_last(self) -> StepSplit:
        """The smallest limits from the first step on: for passes that are tried and thrown away."""
        largest_first = sorted(self.limits, key=lambda limit: -limit.most)
        return replace(self, limits=tuple(replace(limit, from_step=0) for limit in largest_first))


class Share(NamedTuple):
    """A rank's part of one step."""

    requests: tuple[Request, ...]
    counts: tuple[int, ...]
    num_samples: int
    """Of the whole step, over all ranks."""
    bucket: int = 0


def share_of_step(
    order: Order, stage_step: int, split: StepSplit, *, is_seeded: bool = True
) -> Share:
    """Where a rank has no sample it borrows some, which count 0."""
    epoch, step = divmod(stage_step, order.steps_per_epoch)
    samples = order.step(epoch, step)
    indices = samples.indices.tolist()
    seeds = order.seeds(epoch, step) if is_seeded else None
    num = len(indices)
    most = split.most_at(stage_step, samples.bucket) if split.limits else split.micro_batch
    if num <= most and split.world == 1 and split.costs is None:
        return Share((Request(indices, seeds),), (num,), num, samples.bucket)
    pieces = _pieces(samples.indices, split, stage_step, samples.bucket)
    if not pieces:
        # A whole micro-batch, not one sample: BatchNorm refuses to learn from a single one.
        lent = range(min(most, len(indices)))
        if split.costs is not None:
            lent = range(1)
        return Share((_request(indices, seeds, lent),), (0,), len(indices), samples.bucket)
    requests = tuple(_request(indices, seeds, piece) for piece in pieces)
    counts = tuple(len(piece) for piece in pieces)
    return Share(requests, counts, len(indices), samples.bucket)


def halve(order: Order, stage_step: int, split: StepSplit) -> tuple[int, Limit | None]:
    """(the largest micro-batch of a step, on whichever rank; the limit that halves it). None:
    every sample goes alone already. The same on all ranks."""
    samples = order.step(*divmod(stage_step, order.steps_per_epoch))
    most = split.most_at(stage_step, samples.bucket)
    if split.costs is None:
        # Of all ranks: a share of 7 is cut into 4 and 3 where one of 6 stays whole.
        shares = [share_of_rank(len(samples.indices), n, split.world) for n in range(split.world)]
        largest = max(len(piece) for own in shares if own for piece in micro_batches(own, most))
        is_single = largest == 1
    else:
        costs = split.costs[samples.indices].tolist()
        pieces = [
            piece
            for rank in range(split.world)
            for piece in split_by_cost(costs, most, rank=rank, world=split.world)
        ]
        together = [sum(costs[n] for n in piece) for piece in pieces if len(piece) > 1]
        largest = max(together, default=max(costs))
        is_single = largest < 2 or not together
    half = -(-largest // 2)
    limit = Limit(bucket=samples.bucket, from_step=stage_step, most=half)
    return largest, None if is_single else limit


def _pieces(
    indices: NDArray[np.int64], split: StepSplit, step: int, bucket: int
) -> list[range] | list[list[int]]:
    most = split.most_at(step, bucket)
    if split.costs is not None:
        costs = split.costs[indices].tolist()
        return split_by_cost(costs, most, rank=split.rank, world=split.world)
    mine = share_of_rank(len(indices), split.rank, split.world)
    return micro_batches(mine, most) if mine else []


def _request(indices: list[int], seeds: list[int] | None, piece: range | list[int]) -> Request:
    chosen = None if seeds is None else [seeds[place] for place in piece]
    return Request([indices[place] for place in piece], chosen)
