"""Solve with OR-tools' CP-SAT, where it is installed: better schedules, bounds and proofs.

Bounded by CP-SAT's own deterministic time, which counts work done, so that a slow machine gets the
same answer as a quick one, only later. The only file that imports ortools.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from tasuki.errors import PlanError
from tasuki.planning.packing.build import Built
from tasuki.planning.packing.problem import Problem

_UNITS_PER_SECOND = 0.4
"""Of deterministic time; one is 2 to 3 seconds of a core for 20 to 100 items."""


@dataclass(frozen=True, slots=True)
class Solved:
    built: Built
    """The best known: what was given, or better."""
    bound: int


def solve(problem: Problem, *, known: Built, bound: int, effort: float) -> Solved:
    """As good as `known` or better. `effort` is about seconds of one core."""
    cp_model = _cp_model()
    model = cp_model.CpModel()
    starts, makespan = _state(model, problem, known, bound)
    here = _place(model, problem, starts, known)
    model.minimize(makespan)
    solver = cp_model.CpSolver()
    solver.parameters.max_deterministic_time = effort * _UNITS_PER_SECOND
    # One worker: several that take turns ran on for ten times the limit. Without linear relaxations
    # it proved a case of 22 items in a sixth of the time.
    solver.parameters.num_workers = 1
    solver.parameters.linearization_level = 0
    solver.parameters.random_seed = 1
    status = solver.solve(model)
    proved = min(known.makespan, max(bound, math.ceil(solver.best_objective_bound - 1e-6)))
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return Solved(known, proved)
    nodes = [next((n for n, var in enumerate(own) if solver.value(var)), 0) for own in here]
    built = Built(round(solver.objective_value), [solver.value(s) for s in starts], nodes)
    return Solved(built, built.makespan if status == cp_model.OPTIMAL else proved)


def _state(model: Any, problem: Problem, known: Built, bound: int) -> tuple[list[Any], Any]:
    """Starts and makespan: what depends on what."""
    most = known.makespan
    heads, tails = problem.heads(), problem.tails()
    starts = [
        model.new_int_var(heads[j], most - tails[j], f"start {j}") for j in range(problem.num_items)
    ]
    makespan = model.new_int_var(bound, most, "makespan")
    for j, start in enumerate(starts):
        model.add_hint(start, known.starts[j])
        model.add(makespan >= start + tails[j])
        for before in problem.after[j]:
            model.add(start >= starts[before] + problem.lengths[before])
    return starts, makespan


def _place(
    model: Any, problem: Problem, starts: Sequence[Any], known: Built
) -> list[Sequence[Any]]:
    """By item, for each node: does it run there? Empty with one node."""
    if len(problem.rooms) == 1:
        intervals = [
            model.new_fixed_size_interval_var(start, problem.lengths[j], f"item {j}")
            for j, start in enumerate(starts)
        ]
        _bound_use(model, problem, node=0, items=range(problem.num_items), intervals=intervals)
        return [() for _ in starts]
    here: list[Sequence[Any]] = []
    by_node: list[list[Any]] = [[] for _ in problem.rooms]
    for j, start in enumerate(starts):
        own = [model.new_bool_var(f"item {j} on {node}") for node in range(len(problem.rooms))]
        model.add_exactly_one(own)
        for node, is_here in enumerate(own):
            model.add_hint(is_here, known.nodes[j] == node)
            by_node[node].append(
                model.new_optional_fixed_size_interval_var(
                    start, problem.lengths[j], is_here, f"item {j} on {node}"
                )
            )
        here.append(own)
    for node, intervals in enumerate(by_node):
        _bound_use(model, problem, node=node, items=range(problem.num_items), intervals=intervals)
    return here


def _bound_use(
    model: Any, problem: Problem, *, node: int, items: Sequence[int], intervals: Sequence[Any]
) -> None:
    room = problem.rooms[node]
    model.add_cumulative(intervals, [problem.widths[j] for j in items], room.gpus)
    if any(problem.cpus):
        model.add_cumulative(intervals, [problem.cpus[j] for j in items], room.cpus)


def refuse_without_solver() -> None:
    """Before anything is packed for it."""
    if find_spec("ortools") is None:
        raise PlanError(
            "the exact solver is not installed: there is no `ortools`",
            hint='pip install "tasuki[exact]", or plan without `--exact`',
        )


def _cp_model() -> Any:
    try:
        from ortools.sat.python import cp_model
    except ImportError as error:
        raise PlanError(
            f"the exact solver cannot be imported: {error}",
            hint='pip install "tasuki[exact]", or plan without it',
        ) from error
    return cp_model
