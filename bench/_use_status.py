"""`tasuki status`, `why` and the curves of a long run: seconds until they answer."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from _measure import MIN_ROUNDS, Spread, spread
from _run_folders import environment, make_finished, make_running

Row = tuple[str, float | Spread, str, float | None]
_RUNS = int(os.environ.get("BENCH_RUNS", "1000"))
_LINES = int(os.environ.get("BENCH_LINES", "1000000"))


def measure() -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="tasuki-bench-") as folder:
        many, long = Path(folder) / "many", Path(folder) / "long"
        make_finished(many, _RUNS)
        rows = _answer(f"status of {_RUNS:,} finished runs", many, "status")
        rows += _answer(f"watch --once of {_RUNS:,}", many, "watch", "--once")
        fake = make_running(long / "run", rows=_LINES, hours=24)
        rows += _answer("status of a run of a day", long, "status")
        rows += _answer("why of a run of a day", long, "why", "run")
        rows += _curves(long / "run")
        fake.close()
    return rows


def _answer(what: str, runs: Path, *words: str) -> list[Row]:
    """Seconds of a command, by the clock and of a core: the clock tells of whoever else works."""
    command = [sys.executable, "-m", "tasuki", *words, "--runs", str(runs)]
    wall, cpu = [], []
    for _ in range(MIN_ROUNDS):
        before, began = _children_s(), time.perf_counter()
        subprocess.run(command, env=environment(), stdout=subprocess.DEVNULL, check=True)
        wall.append(time.perf_counter() - began)
        cpu.append(_children_s() - before)
    return [(what, spread(wall), "s", None), ("… of a core", spread(cpu), "s", None)]


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _core_s(act: Callable[[], object]) -> float:
    began = time.process_time()
    act()
    return time.process_time() - began


def _curves(run: Path) -> list[Row]:
    from tasuki.commands.curves import CurveReader
    from tasuki.runs.runs import RunFolder

    reader = CurveReader(RunFolder(run))
    first = _core_s(reader.look)
    reader.read()  # finds the extremes of all blocks, once
    thin = spread([_core_s(reader.read) for _ in range(MIN_ROUNDS)])
    idle = spread([_core_s(reader.look) * 1e3 for _ in range(MIN_ROUNDS)])
    return [
        (f"curves: first look at {_LINES:,} lines of metrics, of a core", first, "s", None),
        ("curves: 2,000 points of each of them, of a core", thin, "s", None),
        ("curves: a look when nothing was added, of a core", idle, "ms", None),
    ]
