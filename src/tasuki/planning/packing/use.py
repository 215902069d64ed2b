"""How a schedule fits a job: does it end in time, what would be late, how much of it is work?"""

from __future__ import annotations

from tasuki.errors import PlanError
from tasuki.planning.packing.values import ItemId, Schedule
from tasuki.units import format_seconds


def fits(schedule: Schedule, *, deadline_s: float) -> bool:
    return schedule.makespan_s <= deadline_s


def late_items(schedule: Schedule, *, deadline_s: float) -> tuple[ItemId, ...]:
    """What would still run, or wait, at the deadline; in order of start."""
    return tuple(placed.id for placed in schedule.placements if placed.end_s > deadline_s)


def share_of_useful_time(schedule: Schedule, *, until_s: float | None = None) -> float:
    """Of the pool's GPU time up to then: the part in which items run. None: up to the last end."""
    until_s = schedule.makespan_s if until_s is None else until_s
    if not schedule.placements:
        return 1.0
    if not until_s > 0:
        raise PlanError(
            f"a job of {format_seconds(until_s)} has no time to use", hint="give a time above 0"
        )
    used = sum(
        placed.item.gpus * max(0.0, min(placed.end_s, until_s) - placed.start_s)
        for placed in schedule.placements
    )
    return used / (schedule.pool.num_gpus * until_s)
