"""`status`: seconds of `tasuki status` of many finished runs. A part of use.py.

`BENCH_RUNS` sets the number of runs.
"""

from __future__ import annotations

import sys
from pathlib import Path

from _measure import MIN_ROUNDS, Figure, run_timed, sized, spread
from _run_folders import environment, make_finished

NUM_RUNS = sized(1000, smoke=5, variable="BENCH_RUNS")


def measure(folder: Path) -> list[Figure]:
    runs = folder / "runs"
    make_finished(runs, NUM_RUNS)
    command = [sys.executable, "-m", "tasuki", "status", "--runs", str(runs)]
    taken = [run_timed(command, env=environment()) for _ in range(MIN_ROUNDS)]
    return [
        Figure(
            f"`tasuki status` of {NUM_RUNS:,} finished runs",
            "",
            spread([took.wall_s for took in taken]),
            unit="s",
        ),
        Figure("… CPU time", "", spread([took.cpu_s for took in taken]), unit="s"),
    ]
