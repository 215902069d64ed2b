"""The packing problem in whole numbers: what bounds, builders and searches work on.

Items are sorted by name, so that the order in which somebody lists them changes nothing. Times are
whole milliseconds divided by what divides all of them: sums are exact, and a makespan that has to
be a whole number of minutes is bounded as one.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from tasuki.errors import PlanError
from tasuki.planning.packing.values import Item, ItemId, Pool


@dataclass(frozen=True, slots=True)
class Room:
    """What a node has."""

    gpus: int
    cpus: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Lists are indexed by item, except `rooms`: by node."""

    ids: tuple[ItemId, ...]
    lengths: tuple[int, ...]
    widths: tuple[int, ...]
    """GPUs."""
    cpus: tuple[int, ...]
    """All 0 where CPUs are not counted."""
    after: tuple[tuple[int, ...], ...]
    then: tuple[tuple[int, ...], ...]
    """The reverse of `after`."""
    order: tuple[int, ...]
    """One in which no item comes before what it depends on."""
    rooms: tuple[Room, ...]
    unit_ms: int
    pinned: tuple[int | None, ...]
    """The node of an item that is running already, from time 0 on."""

    @property
    def num_items(self) -> int:
        return len(self.lengths)

    @property
    def num_gpus(self) -> int:
        return sum(room.gpus for room in self.rooms)

    def seconds(self, time: int) -> float:
        return time * self.unit_ms / 1000

    def heads(self) -> list[int]:
        """The earliest start of each item, if GPUs were plenty."""
        heads = [0] * self.num_items
        for j in self.order:
            for k in self.then[j]:
                heads[k] = max(heads[k], heads[j] + self.lengths[j])
        return heads

    def tails(self) -> list[int]:
        """The least time from the start of each item to the end of all that hangs on it."""
        tails = list(self.lengths)
        for j in reversed(self.order):
            for k in self.after[j]:
                tails[k] = max(tails[k], self.lengths[k] + tails[j])
        return tails

    def reverse(self) -> Problem:
        """The same in a mirror: what came first comes last."""
        return replace(self, after=self.then, then=self.after, order=self.order[::-1])


def state_problem(items: Sequence[Item], pool: Pool) -> Problem:
    """Refuses what no pool can hold and no order can solve."""
    items = sorted(items, key=lambda item: item.id)
    _refuse_repeated(items)
    for item in items:
        _refuse_too_large(item, pool)
    counts_cpus = pool.cpus_per_node is not None and any(item.cpus for item in items)
    milliseconds = [max(1, math.ceil(round(item.seconds * 1000, 3))) for item in items]
    unit = math.gcd(*milliseconds) or 1
    after = _indices(items)
    then = _reversed(after)
    return Problem(
        ids=tuple(item.id for item in items),
        lengths=tuple(length // unit for length in milliseconds),
        widths=tuple(item.gpus for item in items),
        cpus=tuple(item.cpus if counts_cpus else 0 for item in items),
        after=after,
        then=then,
        order=_sorted_by_dependency(items, after, then),
        rooms=(Room(pool.gpus_per_node, pool.cpus_per_node or 0),) * pool.num_nodes,
        unit_ms=unit,
        pinned=(None,) * len(items),
    )


def _refuse_repeated(items: Sequence[Item]) -> None:
    for first, second in pairwise(items):
        if first.id == second.id:
            raise PlanError(f"{first.id} is to be packed twice", hint="name each stage once")


def _refuse_too_large(item: Item, pool: Pool) -> None:
    if item.gpus > pool.gpus_per_node:
        raise PlanError(
            f"{item.id} needs {item.gpus} GPUs on one node, but a node has {pool.gpus_per_node}",
            hint=f"give the stage at most {pool.gpus_per_node} GPUs, or ask for nodes with more "
            "(`cluster.gpus`)",
        )
    if pool.cpus_per_node is not None and item.cpus > pool.cpus_per_node:
        raise PlanError(
            f"{item.id} needs {item.cpus} CPUs on one node, but a node gives {pool.cpus_per_node}",
            hint="use fewer loader workers (`workers`), or ask for more CPUs (`cluster.cpus`)",
        )


def _indices(items: Sequence[Item]) -> tuple[tuple[int, ...], ...]:
    """Of what each item depends on."""
    index = {item.id: number for number, item in enumerate(items)}
    for item in items:
        for before in item.after:
            if before not in index:
                raise PlanError(
                    f"{item.id} is to start after {ItemId(*before)}, which is not to be packed",
                    hint="pack both, or leave the dependency out if it is done",
                )
    return tuple(tuple(sorted({index[before] for before in item.after})) for item in items)


def _reversed(after: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    then: list[list[int]] = [[] for _ in after]
    for j, before in enumerate(after):
        for k in before:
            then[k].append(j)
    return tuple(map(tuple, then))


def _sorted_by_dependency(
    items: Sequence[Item], after: Sequence[Sequence[int]], then: Sequence[Sequence[int]]
) -> tuple[int, ...]:
    order = order_by_priority(range(len(items)), after, then)
    if len(order) < len(items):
        circle = _circle(after, left=set(range(len(items))) - set(order))
        raise PlanError(
            "stages wait for each other in a circle: "
            + " → ".join(str(items[j].id) for j in [*circle, circle[0]]),
            hint="take one of these dependencies out (`init_from`)",
        )
    return tuple(order)


def order_by_priority(
    ranks: Sequence[int], after: Sequence[Sequence[int]], then: Sequence[Sequence[int]]
) -> list[int]:
    """Lowest rank first among those whose dependencies came before; ranks are all different."""
    missing = [len(before) for before in after]
    ready = [(ranks[j], j) for j, number in enumerate(missing) if not number]
    heapq.heapify(ready)
    order = []
    while ready:
        _, j = heapq.heappop(ready)
        order.append(j)
        for k in then[j]:
            missing[k] -= 1
            if not missing[k]:
                heapq.heappush(ready, (ranks[k], k))
    return order


def _circle(after: Sequence[Sequence[int]], left: set[int]) -> list[int]:
    """Each of those left waits for another of them: going back, one comes round."""
    at: dict[int, int] = {}
    j = min(left)
    while j not in at:
        at[j] = len(at)
        j = min(k for k in after[j] if k in left)
    return list(at)[at[j] :][::-1]
