"""What free GPUs take next, when things went otherwise than planned.

Pure, and the same for the same facts. Running items never move; those that wait may change their
place and order. The remaining items are scheduled anew by every rule and by the order of the plan,
and what the shortest of these starts now is started; the rest is only a forecast, made again when
the next item ends. So nobody is kept from idle GPUs, unless waiting for a wide item is the shorter
way.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice

from tasuki.errors import PlanError
from tasuki.planning.packing.build import Built, build_parallel, build_serial
from tasuki.planning.packing.place import Gpus, place_on_gpus
from tasuki.planning.packing.problem import Problem, Room, order_by_priority, state_problem
from tasuki.planning.packing.search import cost_of, ranks_of, rules
from tasuki.planning.packing.values import Item, ItemId, Placement, Pool, Schedule

_EFFORT = 200_000
"""Placements of items."""
_LATE_S = 1.0
"""An item that is past its expected end is taken to end so soon."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """An item that has started: where, and when it is expected to end."""

    node: int
    gpus: Gpus
    end_s: float


def repack(
    schedule: Schedule,
    *,
    done: Collection[ItemId],
    running: Mapping[ItemId, Running],
    waiting: Collection[ItemId],
    free: Mapping[int, Collection[int]],
    now_s: float,
) -> tuple[Placement, ...]:
    """What to start now. `free`: the GPUs by node; those neither free nor in use are gone.

    Items that wait for one that is neither done, running nor waiting (it failed, say), or that are
    too wide for what is left of the pool, stay where they are.
    """
    planned = {placed.id: placed for placed in schedule.placements}
    for unknown in sorted({*done, *running, *waiting} - planned.keys()):
        raise PlanError(
            f"{ItemId(*unknown)} is no part of this schedule", hint="pack it together with the rest"
        )
    rooms = _rooms(schedule.pool, planned, running, free)
    startable = _startable(planned, set(done), running, waiting, rooms)
    if not startable:
        return ()
    problem = _remaining(schedule.pool, planned, running, startable, rooms, now_s)
    most = 2 + _EFFORT // cost_of(problem)
    best = min(islice(_candidates(problem, planned), most), key=lambda built: built.makespan)
    gpus = place_on_gpus(
        problem,
        best,
        free=[set(free.get(node, ())) for node in range(len(rooms))],
        taken={j: running[i].gpus for j, i in enumerate(problem.ids) if i in running},
    )
    return tuple(
        Placement(
            item=planned[problem.ids[j]].item,
            start_s=now_s,
            end_s=now_s + planned[problem.ids[j]].item.seconds,
            node=best.nodes[j],
            gpus=gpus[j],
        )
        for j, start in enumerate(best.starts)
        if start == 0 and problem.pinned[j] is None
    )


def _rooms(
    pool: Pool,
    planned: Mapping[ItemId, Placement],
    running: Mapping[ItemId, Running],
    free: Mapping[int, Collection[int]],
) -> list[Room]:
    """What each node has for those that run and those that wait."""
    rooms = []
    for node in range(pool.num_nodes):
        held = sum(len(entry.gpus) for entry in running.values() if entry.node == node)
        used = sum(planned[i].item.cpus for i, entry in running.items() if entry.node == node)
        gpus = held + len(set(free.get(node, ())))
        rooms.append(Room(gpus, max(used, pool.cpus_per_node or 0)))
    return rooms


def _startable(
    planned: Mapping[ItemId, Placement],
    done: set[ItemId],
    running: Mapping[ItemId, Running],
    waiting: Collection[ItemId],
    rooms: Collection[Room],
) -> dict[ItemId, Item]:
    """Waiting items that will be able to start, now or after others, without what is done."""
    found: dict[ItemId, Item] = {}
    for placed in planned.values():  # in order of start: what an item depends on comes before it
        item = placed.item
        needed = tuple(before for before in item.after if before not in done)
        if (
            placed.id in waiting
            and all(before in running or before in found for before in needed)
            and any(item.gpus <= room.gpus for room in rooms)
        ):
            found[placed.id] = replace(item, after=needed)
    return found


def _remaining(
    pool: Pool,
    planned: Mapping[ItemId, Placement],
    running: Mapping[ItemId, Running],
    startable: Mapping[ItemId, Item],
    rooms: Collection[Room],
    now_s: float,
) -> Problem:
    """Time 0 is now."""
    items = list(startable.values())
    for i, entry in running.items():
        left_s = entry.end_s - now_s
        seconds = left_s if math.isfinite(left_s) and left_s > 0 else _LATE_S
        items.append(replace(planned[i].item, seconds=seconds, after=()))
    problem = state_problem(items, pool)
    pinned = tuple(running[i].node if i in running else None for i in problem.ids)
    return replace(problem, rooms=tuple(rooms), pinned=pinned)


def _candidates(problem: Problem, planned: Mapping[ItemId, Placement]) -> Iterator[Built]:
    """The order of the plan comes first: among equals it wins."""
    is_running = [node is not None for node in problem.pinned]
    by_plan = sorted(range(problem.num_items), key=lambda j: planned[problem.ids[j]].start_s)
    for ranks in (ranks_of(by_plan), *rules(problem).values()):
        runs_first = sorted(range(problem.num_items), key=lambda j: (not is_running[j], ranks[j]))
        order = order_by_priority(ranks_of(runs_first), problem.after, problem.then)
        yield build_serial(problem, order)
        yield build_parallel(problem, ranks)
