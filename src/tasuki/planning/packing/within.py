"""Fill a job up to its end: what of an order of items ends in time, and what waits for the next.

The serial builder's way with one more rule: what would not end by then is left out, and so is what
depends on it; smaller items behind it may still fill the hole.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tasuki.planning.packing.bounds import lower_bound
from tasuki.planning.packing.build import Profile, build_serial
from tasuki.planning.packing.pack import make_schedule
from tasuki.planning.packing.problem import order_by_priority, state_problem
from tasuki.planning.packing.search import ranks_of, rules
from tasuki.planning.packing.values import Item, ItemId, Pool, Schedule


class Filling:
    """One node up to a time, in milliseconds."""

    def __init__(self, pool: Pool, *, until_s: float) -> None:
        assert pool.num_nodes == 1, "a lane lies inside one node"
        self._profile = Profile([0], [pool.gpus_per_node], [pool.cpus_per_node or 0])
        self._counts_cpus = pool.cpus_per_node is not None
        self._until = math.floor(until_s * 1000)
        self._ends: dict[ItemId, int] = {}
        self.placed: list[Item] = []

    @property
    def work_s(self) -> float:
        return sum(item.seconds * item.gpus for item in self.placed)

    @property
    def end_s(self) -> float:
        return max(self._ends.values(), default=0) / 1000

    def place(self, item: Item) -> bool:
        """At its earliest; False: it would not end in time, or waits for what does not."""
        not_before = self._not_before(item)
        length = milliseconds(item.seconds)
        if not_before is None or not_before + length > self._until:
            return False
        cpus = item.cpus if self._counts_cpus else 0
        start = self._profile.earliest(not_before, length, item.gpus, cpus)
        if start + length > self._until:
            return False
        self._profile.take(start, start + length, item.gpus, cpus)
        self._ends[item.id] = start + length
        self.placed.append(item)
        return True

    def room_s(self, item: Item) -> float:
        """How long it could run at the most, up to the end; 0: not at all."""
        not_before = self._not_before(item)
        if not_before is None:
            return 0.0
        cpus = item.cpus if self._counts_cpus else 0
        for start in sorted({not_before, *(e for e in self._ends.values() if e > not_before)}):
            length = self._until - start
            if length <= 0:
                break
            if self._profile.earliest(start, length, item.gpus, cpus) == start:
                return length / 1000
        return 0.0

    def _not_before(self, item: Item) -> int | None:
        ends = [self._ends.get(before) for before in item.after]
        return None if None in ends else max((end for end in ends if end is not None), default=0)


def milliseconds(seconds: float) -> int:
    """As packing counts them."""
    return max(1, math.ceil(round(seconds * 1000, 3)))


def fill(items: Sequence[Item], pool: Pool, *, until_s: float, first: Sequence[Item]) -> Filling:
    """The rule that takes the most work in. `first`: an order that is tried before the rules."""
    orders: list[Sequence[Item]] = [first] if first else []
    problem = state_problem(items, pool)
    by_id = {item.id: item for item in items}
    for ranks in rules(problem).values():
        by_rank = order_by_priority(ranks, problem.after, problem.then)
        orders.append([by_id[problem.ids[j]] for j in by_rank])
    best: Filling | None = None
    for order in orders:
        filling = Filling(pool, until_s=until_s)
        for item in order:
            filling.place(item)
        if best is None or (filling.work_s, -filling.end_s) > (best.work_s, -best.end_s):
            best = filling
    assert best is not None
    return best


def schedule_in_order(items: Sequence[Item], pool: Pool, *, reasons: Sequence[str]) -> Schedule:
    """Each at its earliest in this order: nobody later than where `Filling` has placed it."""
    problem = state_problem(items, pool)
    number = {item.id: place for place, item in enumerate(items)}
    ranks = ranks_of(sorted(range(problem.num_items), key=lambda j: number[problem.ids[j]]))
    order = order_by_priority(ranks, problem.after, problem.then)
    built = build_serial(problem, order)
    return make_schedule(
        problem,
        built,
        lower_bound(problem),
        by_id={item.id: item for item in items},
        pool=pool,
        reasons=reasons,
    )
