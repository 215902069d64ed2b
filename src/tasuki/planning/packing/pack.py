"""Pack items on a pool of GPUs so that the last one ends early. The way into this package.

Simple rules first, then a search through all orders of a small problem, then annealing. Knows
nothing of specs and schedulers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tasuki.planning.packing.bounds import Bound, lower_bound
from tasuki.planning.packing.branch import can_prove, prove
from tasuki.planning.packing.build import Built
from tasuki.planning.packing.place import place_on_gpus
from tasuki.planning.packing.problem import Problem, state_problem
from tasuki.planning.packing.search import EFFORT, Found, anneal, apply_rules
from tasuki.planning.packing.values import Item, ItemId, Placement, Pool, Schedule
from tasuki.units import format_seconds


def pack(
    items: Sequence[Item],
    pool: Pool,
    *,
    seed: int = 0,
    effort: int = EFFORT,
) -> Schedule:
    """The same for the same items, in whatever order, on whatever machine.

    `effort` counts placements of items.
    """
    problem = state_problem(items, pool)
    if not items:
        return Schedule(pool=pool, placements=(), lower_bound_s=0.0, reasons=("nothing to do",))
    bound = lower_bound(problem)
    found = apply_rules(problem, bound=bound.time)
    if found.built.makespan > bound.time and can_prove(problem):
        found, bound = _prove(problem, found, bound, effort)
    if found.built.makespan > bound.time:
        found = anneal(problem, found, bound=bound.time, seed=seed, effort=effort)
    reasons = [_told(problem, found)]
    reasons.append(_compared(problem, found.built, bound))
    by_id = {item.id: item for item in items}
    return make_schedule(problem, found.built, bound, by_id=by_id, pool=pool, reasons=reasons)


def _prove(problem: Problem, known: Found, bound: Bound, effort: int) -> tuple[Found, Bound]:
    proof = prove(problem, known=known.built, bound=bound.time, most_steps=effort // 2)
    if proof.is_complete:
        told = f"a search through all orders ({proof.num_steps:,} steps)"
        bound = Bound(proof.built.makespan, told)
    if proof.built.makespan == known.built.makespan:
        return known, bound
    return replace(known, built=proof.built, how="search through all orders"), bound


def _told(problem: Problem, found: Found) -> str:
    makespan = format_seconds(problem.seconds(found.built.makespan))
    return f"{found.how}: {makespan}, the best of {found.num_built:,} schedules"


def _compared(problem: Problem, built: Built, bound: Bound) -> str:
    if built.makespan == bound.time:
        return f"nothing is shorter, by {bound.reason}"
    share = built.makespan / bound.time - 1
    least = format_seconds(problem.seconds(bound.time))
    return f"at most {share:.2%} too long: nothing is shorter than {least}, by {bound.reason}"


def make_schedule(
    problem: Problem,
    built: Built,
    bound: Bound,
    *,
    by_id: dict[ItemId, Item],
    pool: Pool,
    reasons: Sequence[str],
) -> Schedule:
    free = [set(range(room.gpus)) for room in problem.rooms]
    gpus = place_on_gpus(problem, built, free=free, taken={})
    placements = [
        Placement(
            item=by_id[problem.ids[j]],
            start_s=problem.seconds(start),
            end_s=problem.seconds(start + problem.lengths[j]),
            node=built.nodes[j],
            gpus=gpus[j],
        )
        for j, start in enumerate(built.starts)
    ]
    return Schedule(
        pool=pool,
        placements=tuple(sorted(placements, key=lambda placed: (placed.start_s, placed.id))),
        lower_bound_s=problem.seconds(bound.time),
        reasons=tuple(reasons),
    )
