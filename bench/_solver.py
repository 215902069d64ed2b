"""CP-SAT's best schedule of chains on one node after some seconds on two cores. For pack.py.

Runs in `.work/solver`, with OR-tools, and imports nothing of tasuki: the model is stated here, from
the plain numbers of the order. It starts from the schedule of the longest first (`hint`). The
seconds are CPU time, since others use the machine too. After twenty times as many the wall clock
ends it.
"""

from __future__ import annotations

import threading
import time
from typing import Any

from ortools.sat.python import cp_model

from _peers import answer, orders

NUM_CORES = 2
MAX_WALL_FACTOR = 20


def solve(order: dict[str, Any]) -> int:
    """The makespan, in the units of the lengths."""
    model = cp_model.CpModel()
    lengths, longest = order["lengths"], order["makespan"]
    starts = [model.new_int_var(0, longest - length, "") for length in lengths]
    makespan = model.new_int_var(order["bound"], longest, "")
    for j, start in enumerate(starts):
        model.add_hint(start, order["hint"][j])
        model.add(makespan >= start + lengths[j])
        for before in order["after"][j]:
            model.add(start >= starts[before] + lengths[before])
    intervals = [
        model.new_fixed_size_interval_var(start, length, "")
        for start, length in zip(starts, lengths, strict=True)
    ]
    model.add_cumulative(intervals, order["widths"], order["gpus"])
    model.minimize(makespan)
    return run_for(model, order["seconds"]) or longest


def run_for(model: cp_model.CpModel, seconds: float) -> int | None:
    """None: nothing was found in time."""
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = NUM_CORES
    solver.parameters.max_time_in_seconds = MAX_WALL_FACTOR * seconds
    ended = threading.Event()
    watcher = threading.Thread(target=stop_after, args=(solver, NUM_CORES * seconds, ended))
    watcher.start()
    status = solver.solve(model)
    ended.set()
    watcher.join()
    is_found = status in (cp_model.OPTIMAL, cp_model.FEASIBLE)
    return round(solver.objective_value) if is_found else None


def stop_after(solver: cp_model.CpSolver, cpu_s: float, ended: threading.Event) -> None:
    until = time.process_time() + cpu_s
    while not ended.wait(0.05):
        if time.process_time() >= until:
            solver.stop_search()


if __name__ == "__main__":
    for each in orders():
        answer(solve(each))
