"""How short tasuki packs stages on GPUs, and how quickly.

Run as `python bench/pack.py`, or with the names of some parts: `… pack.py large`. A quarter of an
hour, most of it CP-SAT's and real runs'.

    chains     random chains of stages of fixed seeds, against the longest first, and against the
               schedule that CP-SAT has after five seconds on two cores (_solver.py)
    large      1,000 chains on 64 GPUs, against the lower bound
    makespans  whole examples: the plan's p10 to p90 against real runs

Schedules are the same on every machine, times are not. Exit code 1 when a schedule is longer than
the longest first. `BENCH_SEEDS` sets the number of seeds of `chains`, `BENCH_PEERS=0` leaves
CP-SAT out.
"""

from __future__ import annotations

import json
import random
import shutil
import statistics
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from _measure import Figure, run_bench, run_timed, sized, spread, timed
from _peers import ROOT, Worker, find_peers, say
from tasuki.planning.packing.bounds import lower_bound
from tasuki.planning.packing.build import build_parallel
from tasuki.planning.packing.pack import pack
from tasuki.planning.packing.problem import state_problem
from tasuki.planning.packing.search import rules
from tasuki.planning.packing.values import Item, Pool, Schedule
from tasuki.runs.events import read_events
from tasuki.runs.runs import RunFolder

NUM_SEEDS = sized(3, smoke=1, variable="BENCH_SEEDS")
NUM_LARGE_SEEDS = sized(6, smoke=1)
SOLVER_S = sized(5.0, smoke=0.5)
"""CPU seconds for each of two cores."""
SMALL = sized(((10, 4), (20, 4), (50, 8), (100, 8), (300, 16)), smoke=((10, 4),))
"""Chains, GPUs of the one node."""
LARGE = sized(((1000, 1, 64), (1000, 8, 8)), smoke=((100, 8, 8),))
"""Chains, nodes, GPUs per node."""
EXAMPLES = sized(("lora_five", "matrix_gnn"), smoke=("matrix_gnn",))
NUM_RUNS = sized(5, smoke=1, variable="BENCH_RUNS")
_SETTINGS = ("--set", "expect=null", *sized((), smoke=("--config", "quick")))
"""Times given by the user would win over those of past runs, and have no error bar."""


def random_chains(num_chains: int, *, gpus: int, seed: int) -> list[Item]:
    """Minutes to hours, one to six stages, most of them on one GPU."""
    draw = random.Random(seed)
    items: list[Item] = []
    for number in range(num_chains):
        after: tuple[Any, ...] = ()
        for stage in range(draw.choice([1, 1, 1, 2, 3, 6])):
            item = Item(
                experiment=f"exp{number:04d}",
                stage=f"stage{stage}",
                gpus=min(draw.choice([1, 1, 1, 1, 2, 4]), gpus),
                seconds=60.0 * (int(draw.lognormvariate(4.5, 0.7)) + 5),
                after=after,
            )
            items.append(item)
            after = (item.id,)
    return items


class Packed(NamedTuple):
    """One case. Makespans are relative to the lower bound."""

    tasuki: float
    solver: float | None
    cpu_s: float


def pack_chains(items: Sequence[Item], pool: Pool, solver: Worker | None) -> Packed:
    schedules: list[Schedule] = []
    took = timed(lambda: schedules.append(pack(items, pool)))
    problem = state_problem(items, pool)
    bound = lower_bound(problem).time
    longest_first = min(
        (
            build_parallel(problem, rules(problem)[rule])
            for rule in ("longest item first", "longest chain first")
        ),
        key=lambda built: built.makespan,
    )
    makespan = schedules[0].makespan_s / problem.seconds(bound)
    if makespan > longest_first.makespan / bound:
        sys.exit("error: a schedule is longer than that of the longest first")
    solved = None
    if solver is not None:
        solved = solver.ask(
            lengths=problem.lengths,
            widths=problem.widths,
            after=problem.after,
            gpus=pool.gpus_per_node,
            hint=longest_first.starts,
            makespan=longest_first.makespan,
            bound=bound,
            seconds=SOLVER_S,
        )
    return Packed(makespan, solved / bound if solved else None, took.cpu_s)


def measure_chains(folder: Path) -> list[Figure]:
    python = find_peers("ortools", name="solver").get("ortools")
    solver = Worker(python, "_solver.py", log=folder / "log") if python else None
    figures: list[Figure] = []
    for num_chains, gpus in SMALL:
        cases = [
            pack_chains(
                random_chains(num_chains, gpus=gpus, seed=seed), Pool(gpus_per_node=gpus), solver
            )
            for seed in range(1, NUM_SEEDS + 1)
        ]
        what = f"{num_chains} chains on {gpus} GPUs"
        over = [100 * (case.tasuki / case.solver - 1) for case in cases if case.solver]
        if over:
            value = f"{statistics.mean(over):+.2f}"
            figures.append(Figure(f"{what}: makespan", "CP-SAT", value, unit="%"))
        figures += _bound_and_time(what, cases)
        say(what)
    if solver is not None:
        solver.close()
    return figures


def measure_large(_: Path) -> list[Figure]:
    figures: list[Figure] = []
    for num_chains, nodes, gpus in LARGE:
        pool = Pool(gpus_per_node=gpus, num_nodes=nodes)
        cases = [
            pack_chains(random_chains(num_chains, gpus=gpus, seed=seed), pool, None)
            for seed in range(1, NUM_LARGE_SEEDS + 1)
        ]
        figures += _bound_and_time(f"{num_chains} chains on {nodes} × {gpus} GPUs", cases)
    return figures


def _bound_and_time(what: str, cases: list[Packed]) -> list[Figure]:
    above = 100 * (statistics.mean(case.tasuki for case in cases) - 1)
    longest_s = max(case.cpu_s for case in cases)
    return [
        Figure(f"{what}: makespan", "the lower bound", f"{above:+.2f}", unit="%"),
        Figure("… CPU time, at most", "", longest_s, unit="s"),
    ]


# -- whole examples ---------------------------------------------------------------------------


def measure_makespans(folder: Path) -> list[Figure]:
    return [figure for name in EXAMPLES for figure in _measure_example(name, folder)]


def _measure_example(name: str, folder: Path) -> list[Figure]:
    """Run once, so that there is history; then planned again, and run as planned."""
    example = folder / name
    shutil.copytree(ROOT / "examples" / name, example, ignore=shutil.ignore_patterns("runs*"))
    if (example / "generate.py").exists():
        run_timed([sys.executable, "generate.py"], cwd=example)
    run = partial(_run_tasuki, example)
    run("run")
    plan = run("plan", "--new")
    taken = spread([_makespan_s(example, run("run", "--new")) for _ in range(NUM_RUNS)])
    planned = f"the plan's p10 to p90: {plan['makespan_s_p10']:.0f} … {plan['makespan_s_p90']:.0f}"
    return [Figure(f"{name}, {NUM_RUNS} runs", planned, taken, unit="s", digits=0)]


def _run_tasuki(folder: Path, *words: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "tasuki", *words, *_SETTINGS, "--json"]
    result: dict[str, Any] = json.loads(run_timed(command, cwd=folder).stdout)
    return result


def _makespan_s(folder: Path, result: dict[str, Any]) -> float:
    """From the start of the first attempt to the end of the last."""
    runs = [RunFolder(folder / "runs" / run["experiment"]) for run in result["runs"]]
    events = [event for run in runs for event in read_events(run)]
    started = min(event["t"] for event in events if event["kind"] == "attempt-started")
    ended = max(event["t"] for event in events if event["kind"] == "attempt-ended")
    return float(ended - started)


PARTS = {"chains": measure_chains, "large": measure_large, "makespans": measure_makespans}

if __name__ == "__main__":
    sys.exit(run_bench("pack", PARTS))
