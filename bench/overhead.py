"""What tasuki adds to a step: its real step loop against a bare PyTorch loop.

Run as `python bench/overhead.py`; about three minutes. A tiny MLP, because only there the cost of a
loop shows. All loops train on one thread and collate, clip and set learning rates alike.

    shared     tasuki's loop and a bare one in one process, ten steps each in turns, on the same
               samples; their final weights must be bitwise identical
    separate   the same step by each tool, in a process of each, which take turns on one core
               (_step_tools.py)
    counted    instructions instead of time (_instructions.py), also of a step of 10 ms: slow, but
               the same on a busy machine; only with `BENCH_INSTRUCTIONS=1`

Log lines and heartbeats are in tasuki's time, the first and the last checkpoint are not. The bare
loop knows its samples and learning rates beforehand. `BENCH_DATA=plain`: the data are a list, which
is known to use no random numbers; else a class that tasuki has to watch for them.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
from pathlib import Path

from _instructions import count_instructions
from _loops import CHUNK, LARGER, TINY, BareLoop, Taken, Turns, give, is_equal, open_bench
from _measure import (
    Figure,
    Spread,
    differences,
    ratios,
    rounds_within,
    run_bench,
    run_interleaved,
    sized,
)
from _peers import Worker, find_peers
from _step_tools import BARE, PACKAGE_OF, STEPS_PER_TURN
from tasuki.train.training import Training

STEPS = sized(1_000, smoke=2 * CHUNK)
ROUNDS, BUDGET_S = sized(15, smoke=1), 20.0
TURNS = sized(15, smoke=1)
"""Of each tool."""


class WithBareLoop(Turns):
    """After each chunk of tasuki's loop the same steps of the bare loop."""

    def __init__(self) -> None:
        self.ours: list[Taken] = []
        self.theirs: list[Taken] = []

    def begin(self, loop: Training) -> None:
        self.bare = BareLoop(give(loop))

    def after_chunk(self, taken: Taken) -> None:
        self.ours.append(taken)
        self.theirs.append(self.bare.run_chunk())


def measure_shared(_: Path) -> list[Figure]:
    """Seconds per step of both loops, by the clock and in CPU time of their thread."""
    rounds: list[WithBareLoop] = []
    with open_bench() as bench:
        bench.train(2 * CHUNK, WithBareLoop())  # warm-up
        for _ in rounds_within(BUDGET_S, max_rounds=ROUNDS):
            gc.collect()
            turns = WithBareLoop()
            weights = bench.train(STEPS, turns)
            if not is_equal(weights, turns.bare.model.state_dict()):
                sys.exit("error: the final weights differ from those of the bare loop")
            rounds.append(turns)
    figures = []
    for title, index in (("wall time", 0), ("CPU time", 1)):
        ours = [sum(taken[index] for taken in turns.ours) / STEPS for turns in rounds]
        bare = [sum(taken[index] for taken in turns.theirs) / STEPS for turns in rounds]
        figures += _compare(f"tasuki, {title}", ours, bare)
    return figures


def measure_separate(folder: Path) -> list[Figure]:
    """CPU time only: the processes share a core."""
    peers = find_peers(*(package for package in PACKAGE_OF.values() if package))
    with contextlib.ExitStack() as stack:
        workers = {}
        for tool, package in PACKAGE_OF.items():
            python = peers.get(package) if package else Path(sys.executable)
            if python is not None:
                arguments = (tool, str(folder))
                workers[tool] = Worker(python, "_step_tools.py", *arguments, log=folder / "log")
                stack.callback(workers[tool].close)
        for worker in workers.values():
            worker.ask()  # imports, first steps
        turns = run_interleaved({tool: w.ask for tool, w in workers.items()}, rounds=TURNS)
    bare = turns.pop(BARE)
    figures = []
    for tool, taken in turns.items():
        figures += _compare(f"{tool}, CPU time of {STEPS_PER_TURN} steps in turn", taken, bare)
    return figures


def _compare(what: str, values: list[float], bare: list[float]) -> list[Figure]:
    added: Spread = differences(values, bare, scale=1e6)
    return [
        Figure(what, "a bare loop", ratios(values, bare), digits=3),
        Figure("… added to a step", "the same", added, unit="µs", digits=0),
    ]


def measure_counted(_: Path) -> list[Figure]:
    figures = []
    for name, width in (("tiny", TINY), ("10 ms", LARGER)):
        counts = count_instructions(width)
        ratio = counts["tasuki"] / counts["bare"]
        figures.append(Figure(f"instructions, {name} step", "a bare loop", ratio, digits=4))
    return figures


PARTS = {"shared": measure_shared, "separate": measure_separate}
if os.environ.get("BENCH_INSTRUCTIONS") == "1":
    PARTS["counted"] = measure_counted

if __name__ == "__main__":
    sys.exit(run_bench("overhead", PARTS, packages=("torch", "numpy")))
