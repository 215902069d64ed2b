"""CP-SAT's best schedule after five seconds on two cores: a worker of pack.py.

Runs in `.work/solver`, and knows nothing of tasuki: a model of its own, of the plain numbers it is
sent. The seconds are of CPU, since others use the machine too; the wall clock ends it at
twenty times as many.
"""

from __future__ import annotations

import threading
import time
from typing import Any

from ortools.sat.python import cp_model

from _peers import answer, orders

CORES = 2
MOST_TIMES = 20


def solve(order: dict[str, Any]) -> dict[str, Any]:
    model = cp_model.CpModel()
    lengths, hint, most = order["lengths"], order["hint"], order["makespan"]
    starts = [model.new_int_var(0, most - length, "") for length in lengths]
    makespan = model.new_int_var(order["bound"], most, "")
    for j, start in enumerate(starts):
        model.add_hint(start, hint[j])
        model.add(makespan >= start + lengths[j])
        for before in order["after"][j]:
            model.add(start >= starts[before] + lengths[before])
    place(model, order, starts)
    model.minimize(makespan)
    return run(model, most, order["seconds"])


def place(model: cp_model.CpModel, order: dict[str, Any], starts: list[Any]) -> None:
    """On one node, or on one of several."""
    lengths, widths, rooms = order["lengths"], order["widths"], order["rooms"]
    if len(rooms) == 1:
        intervals = [
            model.new_fixed_size_interval_var(start, length, "")
            for start, length in zip(starts, lengths, strict=True)
        ]
        model.add_cumulative(intervals, widths, rooms[0])
        return
    by_node: list[list[Any]] = [[] for _ in rooms]
    for j, start in enumerate(starts):
        here = [model.new_bool_var("") for _ in rooms]
        model.add_exactly_one(here)
        for node, is_here in enumerate(here):
            model.add_hint(is_here, order["nodes"][j] == node)
            by_node[node].append(
                model.new_optional_fixed_size_interval_var(start, lengths[j], is_here, "")
            )
    for gpus, intervals in zip(rooms, by_node, strict=True):
        model.add_cumulative(intervals, widths, gpus)


def run(model: cp_model.CpModel, most: int, seconds: float) -> dict[str, Any]:
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = CORES
    solver.parameters.max_time_in_seconds = MOST_TIMES * seconds
    ended = threading.Event()
    watcher = threading.Thread(target=stop_after, args=(solver, CORES * seconds, ended))
    cpu, wall = time.process_time(), time.perf_counter()
    watcher.start()
    status = solver.solve(model)
    ended.set()
    watcher.join()
    is_found = status in (cp_model.OPTIMAL, cp_model.FEASIBLE)
    return {
        "makespan": round(solver.objective_value) if is_found else most,
        "bound": round(solver.best_objective_bound),
        "is_proved": status == cp_model.OPTIMAL,
        "cpu_s": time.process_time() - cpu,
        "wall_s": time.perf_counter() - wall,
    }


def stop_after(solver: cp_model.CpSolver, cpu_s: float, ended: threading.Event) -> None:
    until = time.process_time() + cpu_s
    while not ended.wait(0.05):
        if time.process_time() >= until:
            solver.stop_search()


if __name__ == "__main__":
    for each in orders():
        answer(solve(each))
