"""A schedule as lanes: lists of items that run one after another on the same GPUs.

Items of different widths share GPUs in turn, so lanes may overlap: a lane of GPUs 0 and 1, then a
lane of GPU 0 and one of GPU 1. Therefore each entry names what it waits for besides the entry
before it: what it depends on, and whose GPUs and CPUs it takes over. Who starts an entry when all
of these have ended keeps every promise of the schedule, however long items really take: no GPU is
used twice, no CPU is oversubscribed, and nobody waits for ever.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tasuki.planning.packing.place import Gpus
from tasuki.planning.packing.values import ItemId, Placement, Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    placed: Placement
    waits_for: tuple[ItemId, ...]
    """Must have ended; what comes before in the same lane is not named again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedLane:
    node: int
    gpus: Gpus
    entries: tuple[Entry, ...]


def lanes_of(schedule: Schedule) -> tuple[PackedLane, ...]:
    """By node, then by the first GPU; wider lanes first."""
    lanes: dict[tuple[int, Gpus], list[Entry]] = {}
    lane_by_id: dict[ItemId, tuple[int, Gpus]] = {}
    nodes = [
        _Node(schedule.pool.gpus_per_node, schedule.pool.cpus_per_node)
        for _ in range(schedule.pool.num_nodes)
    ]
    for placed in schedule.placements:
        lane = (placed.node, placed.gpus)
        former = {*placed.item.after, *nodes[placed.node].hand_over(placed)}
        waits_for = sorted(i for i in former if lane_by_id[i] != lane)
        lane_by_id[placed.id] = lane
        lanes.setdefault(lane, []).append(Entry(placed=placed, waits_for=tuple(waits_for)))
    order = sorted(lanes, key=lambda lane: (lane[0], lane[1][0], -len(lane[1]), lane[1]))
    return tuple(
        PackedLane(node=node, gpus=gpus, entries=tuple(lanes[node, gpus])) for node, gpus in order
    )


class _Node:
    """Who used each GPU and each CPU last."""

    def __init__(self, gpus: int, cpus: int | None) -> None:
        self._users: list[ItemId | None] = [None] * gpus
        self._counts_cpus = cpus is not None
        self._cpus: dict[ItemId | None, int] = {None: cpus or 0}
        self._ends: dict[ItemId | None, float] = {None: 0.0}

    def hand_over(self, placed: Placement) -> set[ItemId]:
        """Give the item its GPUs and CPUs; whose were they?"""
        former = {user for gpu in placed.gpus if (user := self._users[gpu]) is not None}
        for gpu in placed.gpus:
            self._users[gpu] = placed.id
        self._ends[placed.id] = placed.end_s
        if self._counts_cpus and placed.item.cpus:
            former |= self._hand_over_cpus(placed, known={*former, *placed.item.after})
        return former

    def _hand_over_cpus(self, placed: Placement, known: Iterable[ItemId]) -> set[ItemId]:
        """From those first for whom it waits anyway, then from those who ended first."""
        waited_for = {None, *known}
        former: set[ItemId] = set()
        missing = placed.item.cpus
        for user in sorted(
            (user for user in self._cpus if self._ends[user] <= placed.start_s),
            key=lambda user: (user not in waited_for, self._ends[user], user or ()),
        ):
            taken = min(missing, self._cpus[user])
            missing -= taken
            self._cpus[user] -= taken
            if not self._cpus[user]:
                del self._cpus[user]
            if user is not None and taken:
                former.add(user)
            if not missing:
                break
        self._cpus[placed.id] = placed.item.cpus
        return former
