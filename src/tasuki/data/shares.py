"""Which samples a rank fetches in a step, micro-batch by micro-batch.

Joins the order (which samples a step has) with the split (who works on which of them). Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tasuki.data.fetch import Request
from tasuki.data.order import Order
from tasuki.data.split import micro_batches, share_of_rank, split_by_cost


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
    if num <= split.micro_batch and split.world == 1 and split.costs is None:
        return Share((Request(indices, seeds),), (num,), num, samples.bucket)
    pieces = _pieces(samples.indices, split)
    if not pieces:
        # A whole micro-batch, not one sample: BatchNorm refuses to learn from a single one.
        lent = range(min(split.micro_batch, len(indices)))
        if split.costs is not None:
            lent = range(1)
        return Share((_request(indices, seeds, lent),), (0,), len(indices), samples.bucket)
    requests = tuple(_request(indices, seeds, piece) for piece in pieces)
    counts = tuple(len(piece) for piece in pieces)
    return Share(requests, counts, len(indices), samples.bucket)


def _pieces(indices: NDArray[np.int64], split: StepSplit) -> list[range] | list[list[int]]:
    if split.costs is not None:
        costs = split.costs[indices].tolist()
        return split_by_cost(costs, split.budget, rank=split.rank, world=split.world)
    mine = share_of_rank(len(indices), split.rank, split.world)
    return micro_batches(mine, split.micro_batch) if mine else []


def _request(indices: list[int], seeds: list[int] | None, piece: range | list[int]) -> Request:
    chosen = None if seeds is None else [seeds[place] for place in piece]
    return Request([indices[place] for place in piece], chosen)
