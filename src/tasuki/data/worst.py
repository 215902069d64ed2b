"""The micro-batches within a cost budget that may take most memory.

Memory goes by cost, but not by cost alone: a few large graphs have other shares of nodes and edges
than many small ones, and samples that are padded take as much as the largest among them. So there
are two kinds that are made up, filled with the dearest samples and with as many even ones as a step
has (the dearest sample goes alone where it is over the budget); and those that the steps of a run
really have, as the order is known before it begins. Asked by the batch tuner (memory/tuner.py), the
first two also by who traces before a run (memory/by_cost.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from tasuki.data.buckets import BucketPlan
from tasuki.data.order import Order
from tasuki.data.split import split_by_cost

Ints = NDArray[np.int64]
MOST_SAMPLES = 100_000
"""Of steps that are looked through: about a second."""


def whole_cost(costs: Ints, plan: BucketPlan, *, batch: int, world: int) -> int:
    """No rank's share of a step costs more (split.py: the dearest first, to who has least)."""
    own = _members(costs, plan)
    num = min(batch, len(own))
    dearest = np.partition(own, len(own) - num)[len(own) - num :]
    total, most = int(dearest.sum()), int(dearest.max())
    return min(total, -(-total // world) + most)


def worst_in_steps(
    order: Order,
    costs: Ints,
    *,
    budget: int,
    world: int = 1,
    total_steps: int,
    parts: Sequence[Ints] = (),
) -> list[list[int]]:
    """The real micro-batches, of whichever rank, that have most: cost, samples, of each of the
    `parts` that costs are made of, and samples as large as their largest. Exact for the steps from
    the first on that have MOST_SAMPLES."""
    each = max(1, order.effective_batch * world)
    best: dict[int, tuple[int, list[int]]] = {}
    for step in range(min(total_steps, -(-MOST_SAMPLES // each))):
        samples = order.step(*divmod(step, order.steps_per_epoch)).indices
        own = costs[samples].tolist()
        counted = [part[samples].tolist() for part in parts]
        for rank in range(world):
            for piece in split_by_cost(own, budget, rank=rank, world=world):
                for which, most in enumerate(_measures(piece, own, counted)):
                    if which not in best or most > best[which][0]:
                        best[which] = most, samples[piece].tolist()
    return list({tuple(sorted(found)): found for _, found in best.values()}.values())


def _measures(piece: list[int], costs: list[int], parts: list[list[int]]) -> Iterator[int]:
    own = [costs[n] for n in piece]
    yield sum(own)
    yield len(piece)
    yield len(piece) * max(own)
    for part in parts:
        yield sum(part[n] for n in piece)


class WorstBatches:
    """Of a stage whose samples share one bucket."""

    def __init__(self, costs: Ints, plan: BucketPlan, *, batch: int, world: int = 1) -> None:
        own = _members(costs, plan)
        order = np.argsort(own, kind="stable")
        index = plan.index(0)
        self._samples = order if index is None else np.asarray(index)[order]
        self._costs = own[order]
        self._sums = np.concatenate([[0], np.cumsum(self._costs)])
        self._num = min(batch, len(own))
        """Samples of a step; one rank may have them all, where they are cheap."""
        self.whole = whole_cost(costs, plan, batch=batch, world=world)
        self.dearest = int(self._costs[-1])
        self.total = int(self._sums[-1])
        self.mean = float(self._costs.mean()) * batch / world
        """Of what a rank has of a step."""

    def of_large(self, budget: int) -> tuple[list[int], int]:
        """(samples, what they cost together): the dearest one, and the next that still fit. Beyond
        what a step has the same ones come again and again."""
        if budget > self.whole > 0:
            return self._again(self.of_large(self.whole), budget)
        places, room = [len(self._costs) - 1], budget - self.dearest
        while len(places) < self._num:
            fitting = int(np.searchsorted(self._costs[: places[-1]], room, side="right")) - 1
            if fitting < 0:
                break
            places.append(fitting)
            room -= int(self._costs[fitting])
        return self._taken(places)

    def of_small(self, budget: int) -> tuple[list[int], int]:
        """As many as a step has, as even as they come: neighbours by cost."""
        if budget > self.whole > 0:
            return self._again(self.of_small(self.whole), budget)
        sums = self._sums[self._num :] - self._sums[: len(self._sums) - self._num]
        first = int(np.searchsorted(sums, budget, side="right")) - 1
        if first >= 0:
            return self._taken(list(range(first, first + self._num)))
        num = int(np.searchsorted(self._sums, budget, side="right")) - 1
        return self._taken(list(range(max(1, num))))

    def _again(self, one: tuple[list[int], int], budget: int) -> tuple[list[int], int]:
        samples, cost = one
        times = budget // max(1, cost)
        others, more = self.of_small(budget - times * cost)
        if times * cost + more > budget:
            others, more = [], 0
        return [*(times * samples), *others], times * cost + more

    def _taken(self, places: list[int]) -> tuple[list[int], int]:
        return self._samples[places].tolist(), int(self._costs[places].sum())


def _members(costs: Ints, plan: BucketPlan) -> Ints:
    index = plan.index(0)
    found: Ints = costs if index is None else costs[index]
    return found
