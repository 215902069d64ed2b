"""The micro-batches within a cost budget that may take most memory: whatever else a step has, it
takes no more than these.

Memory goes by cost, but not by cost alone: a few large graphs have other shares of nodes and edges
than many small ones. So there are two kinds, filled up with the dearest samples and with as many
even ones as a step has; the dearest sample goes alone where it is over the budget. Which samples a
step really takes is order.py's. Asked by the batch tuner (train/tuner.py) and by who traces before
a run (train/probe/by_cost.py).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tasuki.data.buckets import BucketPlan

Ints = NDArray[np.int64]


def whole_cost(costs: Ints, plan: BucketPlan, *, batch: int, world: int) -> int:
    """No rank's share of a step costs more (split.py: the dearest first, to who has least)."""
    own = _members(costs, plan)
    num = min(batch, len(own))
    dearest = np.partition(own, len(own) - num)[len(own) - num :]
    total, most = int(dearest.sum()), int(dearest.max())
    return min(total, -(-total // world) + most)


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
