"""How short tasuki packs, how quickly, and how much an exact solver still finds.

Run as `python bench/pack.py`; about a quarter of an hour, most of it CP-SAT's and real runs'. Four
parts, some of them alone by name (`pack.py five makespans`; nothing is written then):

- `five`: the five experiments of requirements.md (E) on four GPUs: a proof, and the packing made
  by hand;
- `chains`: random chains of 1, 2 and 4 GPUs of fixed seeds: tasuki without OR-tools beside the
  longest chain first, and beside what CP-SAT has after five seconds on two cores, from the same
  first schedule;
- `large`: 1,000 chains on 64 GPUs: the distance to the lower bound;
- `makespans` (_makespans.py): whole examples, as planned and as they really ran.

Exit code 1 where a goal is missed. Schedules are the same on every machine, times are not: CPU
seconds stand beside those of the wall clock. `BENCH_SEEDS` sets the number of seeds,
`BENCH_PEERS=0` leaves CP-SAT out.
"""

from __future__ import annotations

import os
import random
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from _makespans import measure as measure_makespans
from _measure import machine_facts, print_facts, print_table, write_results
from _peers import BENCH, ROOT, NoPeers, Worker, python_with, say
from tasuki.planning.packing.bounds import lower_bound
from tasuki.planning.packing.build import build_parallel
from tasuki.planning.packing.pack import pack
from tasuki.planning.packing.problem import state_problem
from tasuki.planning.packing.search import rules
from tasuki.planning.packing.values import Item, Pool, Schedule
from tasuki.units import format_seconds

SEEDS = int(os.environ.get("BENCH_SEEDS", "6"))
SOLVER_S = 5.0
SMALL = ((10, 1, 4), (20, 1, 4), (50, 1, 8), (100, 1, 8), (300, 1, 16), (300, 2, 8))
LARGE = ((1000, 1, 64), (1000, 8, 8))
"""(chains, nodes, GPUs per node)"""


@dataclass(frozen=True, slots=True)
class Packed:
    """One case. Makespans are relative to the lower bound."""

    lpt: float
    ours: float
    solver: float | None
    cpu_s: float
    wall_s: float
    is_optimal: bool
    solver_proved: bool | None
    solver_cpu_s: float | None


# -- cases --------------------------------------------------------------------------------------


def five_experiments() -> list[Item]:
    """1 to 2 hours of training each, in eight stages; evaluated in 93 minutes in all."""
    minutes = {"exp1": [75], "exp2": [120], "exp3": [40, 35, 40], "exp4": [50, 55], "exp5": [65]}
    evaluations = {"exp1": 18, "exp2": 22, "exp3": 20, "exp4": 17, "exp5": 16}
    items: list[Item] = []
    for name, stages in minutes.items():
        for number, length in enumerate(stages, 1):
            after = (items[-1].id,) if number > 1 else ()
            items.append(
                Item(experiment=name, stage=f"stage{number}", seconds=60 * length, after=after)
            )
        last = items[-1]
        items.append(
            Item(
                experiment=name,
                stage=last.stage,
                kind="evaluate",
                seconds=60 * evaluations[name],
                after=(last.id,),
            )
        )
    return items


def packed_by_hand(items: Sequence[Item]) -> float:
    """E3: exp1 → exp5, exp2, exp3, exp4 on a GPU each, evaluated where they were trained."""
    lanes = (("exp1", "exp5"), ("exp2",), ("exp3",), ("exp4",))
    return max(sum(i.seconds for i in items if i.experiment in lane) for lane in lanes)


def random_chains(chains: int, *, gpus: int, seed: int) -> list[Item]:
    """Minutes to hours, one to six stages, most of them on one GPU."""
    draw = random.Random(seed)
    items: list[Item] = []
    for number in range(chains):
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


# -- measuring ----------------------------------------------------------------------------------


def timed(items: Sequence[Item], pool: Pool) -> tuple[Schedule, float, float]:
    """(schedule, CPU seconds, wall seconds)."""
    cpu, wall = time.process_time(), time.perf_counter()
    schedule = pack(items, pool)
    return schedule, time.process_time() - cpu, time.perf_counter() - wall


def measure(items: Sequence[Item], pool: Pool, solver: Worker | None) -> Packed:
    schedule, cpu_s, wall_s = timed(items, pool)
    problem = state_problem(items, pool)
    bound = lower_bound(problem).time
    lpt = min(
        (
            build_parallel(problem, rules(problem)[rule])
            for rule in ("longest item first", "longest chain first")
        ),
        key=lambda built: built.makespan,
    )
    solved = None
    if solver is not None:
        solved = solver.ask(
            lengths=problem.lengths,
            widths=problem.widths,
            after=problem.after,
            rooms=[room.gpus for room in problem.rooms],
            hint=lpt.starts,
            nodes=lpt.nodes,
            makespan=lpt.makespan,
            bound=bound,
            seconds=SOLVER_S,
        )
    bound_s = problem.seconds(bound)
    return Packed(
        lpt=lpt.makespan / bound,
        ours=schedule.makespan_s / bound_s,
        solver=solved["makespan"] / bound if solved else None,
        cpu_s=cpu_s,
        wall_s=wall_s,
        is_optimal=schedule.is_optimal,
        solver_proved=solved["is_proved"] if solved else None,
        solver_cpu_s=solved["cpu_s"] if solved else None,
    )


def measure_family(family: tuple[int, int, int], solver: Worker | None) -> list[Packed]:
    chains, nodes, gpus = family
    found = []
    for seed in range(1, SEEDS + 1):
        items = random_chains(chains, gpus=gpus, seed=seed)
        found.append(measure(items, Pool(gpus_per_node=gpus, num_nodes=nodes), solver))
    say(f"{chains} chains on {nodes} × {gpus} GPUs")
    return found


def find_solver() -> Worker | None:
    folder = ROOT / ".work" / "solver"
    try:
        python = python_with(
            ["ortools"], folder=folder, pins=BENCH / "solver.txt", size="0.3 GB, a minute"
        )
    except NoPeers as why:
        say(f"CP-SAT is left out: {why}")
        return None
    return Worker(python, "_solver.py", log=Path(folder / "log.txt"))


# -- telling ------------------------------------------------------------------------------------


def row(family: tuple[int, int, int], found: Sequence[Packed]) -> list[str]:
    chains, nodes, gpus = family
    solved = [p.solver for p in found if p.solver is not None]
    beside = [p.ours / p.solver - 1 for p in found if p.solver is not None]
    return [
        f"{chains} chains, {nodes} × {gpus} GPUs",
        f"{mean_gap([p.lpt for p in found]):.2%}",
        f"{mean_gap([p.ours for p in found]):.2%}",
        f"{mean_gap(solved):.2%}" if solved else "-",
        f"{statistics.mean(beside):+.2%}" if beside else "-",
        f"{max(beside):+.2%}" if beside else "-",
        f"{sum(p.solver_proved or False for p in found)}" if solved else "-",
        f"{min(p.solver_cpu_s or 0.0 for p in found):.1f}" if solved else "-",
        f"{statistics.median(p.cpu_s for p in found):.2f}",
        f"{max(p.cpu_s for p in found):.2f}",
        f"{max(p.wall_s for p in found):.2f}",
    ]


def mean_gap(values: Sequence[float]) -> float:
    return statistics.mean(values) - 1


def missed(family: tuple[int, int, int], found: Sequence[Packed]) -> list[str]:
    """Goals: 1.5 % of CP-SAT in 2 s; 1 % of the bound in 5 s for 1,000 chains; never above LPT."""
    name, is_large = f"{family[0]} chains", family in LARGE
    beside = [p.ours / p.solver - 1 for p in found if p.solver is not None]
    goals = {
        "worse than the longest first": all(p.ours <= p.lpt for p in found),
        "too slow": max(p.cpu_s for p in found) <= (5 if is_large else 2),
        "more than 1 % above the bound": not is_large or max(p.ours for p in found) <= 1.01,
        "more than 1.5 % behind CP-SAT": not beside or statistics.mean(beside) <= 0.015,
    }
    return [f"{name}: {told}" for told, is_met in goals.items() if not is_met]


def pack_the_five() -> tuple[dict[str, Any], list[str]]:
    items = five_experiments()
    schedule, cpu_s, wall_s = timed(items, Pool(gpus_per_node=4))
    by_hand = packed_by_hand(items)
    rows = [
        ["tasuki", schedule.makespan_s, str(schedule.is_optimal), f"{cpu_s * 1e3:.1f}"],
        ["lower bound", schedule.lower_bound_s, "", ""],
        ["by hand (E3)", by_hand, "", ""],
    ]
    print_table(
        "Five experiments, eight stages, on four GPUs",
        ["", "takes", "proved", "CPU ms"],
        [[name, format_seconds(seconds), *rest] for name, seconds, *rest in rows],
    )
    print("  " + "\n  ".join(schedule.reasons))
    is_met = schedule.is_optimal and schedule.makespan_s <= by_hand and wall_s <= 1
    facts = {
        "makespan_s": schedule.makespan_s,
        "by_hand_s": by_hand,
        "is_optimal": schedule.is_optimal,
        "cpu_s": cpu_s,
        "wall_s": wall_s,
    }
    return facts, [] if is_met else ["the five experiments"]


def pack_chains(families: Sequence[tuple[int, int, int]]) -> tuple[dict[str, Any], list[str]]:
    solver = find_solver() if set(families) & set(SMALL) else None
    found: dict[tuple[int, int, int], list[Packed]] = {}
    failures: list[str] = []
    for family in families:
        found[family] = measure_family(family, solver if family in SMALL else None)
        failures += missed(family, found[family])
    if solver is not None:
        solver.close()
    head = ["", "longest first", "tasuki", "CP-SAT", "tasuki/CP-SAT", "worst", "proved", "had"]
    print_table(
        f"Above the lower bound, mean of {SEEDS} seeds; CPU seconds of tasuki",
        [*head, "CPU s", "most", "wall, most"],
        [row(family, packed) for family, packed in found.items()],
    )
    told = {"×".join(map(str, family)): [asdict(p) for p in f] for family, f in found.items()}
    return told, failures


def run_examples() -> tuple[dict[str, Any], list[str]]:
    told = measure_makespans()
    off = [name for name, case in told.items() if not case["is_covered"]]
    return told, [f"{name}: the median of real runs is not within p10 and p90" for name in off]


PARTS = {
    "five": pack_the_five,
    "chains": lambda: pack_chains(SMALL),
    "large": lambda: pack_chains(LARGE),
    "makespans": run_examples,
}


def main(wanted: Sequence[str]) -> int:
    if unknown := set(wanted) - set(PARTS):
        sys.exit(f"error: there is no part {', '.join(unknown)}; there are {', '.join(PARTS)}")
    facts = machine_facts()
    print_facts(facts)
    failures: list[str] = []
    results: dict[str, Any] = {}
    for name in wanted or PARTS:
        results[name], own = PARTS[name]()
        failures += own
        sys.stdout.flush()
    if not wanted:
        write_results("pack", {"machine": facts, **results, "missed": failures})
    for failure in failures:
        print(f"missed: {failure}", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
