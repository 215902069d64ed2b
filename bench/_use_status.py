"""`tasuki status`, `why` and the curves of a long run: seconds until they answer."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from _measure import MIN_ROUNDS, Spread, spread
from _run_folders import environment, make_finished, make_running

_RUNS = int(os.environ.get("BENCH_RUNS", "1000"))
_LINES = int(os.environ.get("BENCH_LINES", "1000000"))


def measure() -> list[tuple[str, float | Spread, str, float | None]]:
    with tempfile.TemporaryDirectory(prefix="tasuki-bench-") as folder:
        many, long = Path(folder) / "many", Path(folder) / "long"
        make_finished(many, _RUNS)
        rows: list[tuple[str, float | Spread, str, float | None]] = [
            (f"status of {_RUNS:,} finished runs", _seconds(many, "status"), "s", None),
            (f"watch --once of {_RUNS:,}", _seconds(many, "watch", "--once"), "s", None),
        ]
        fake = make_running(long / "run", rows=_LINES, hours=24)
        rows.append(("status of a run of a day", _seconds(long, "status"), "s", None))
        rows.append(("why of a run of a day", _seconds(long, "why", "run"), "s", None))
        rows += _curves(long / "run")
        fake.close()
    return rows


def _seconds(runs: Path, *words: str) -> Spread:
    command = [sys.executable, "-m", "tasuki", *words, "--runs", str(runs)]

    def answer() -> None:
        subprocess.run(command, env=environment(), stdout=subprocess.DEVNULL, check=True)

    return spread([_timed(answer) for _ in range(MIN_ROUNDS)])


def _timed(act: Callable[[], object]) -> float:
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


def _curves(run: Path) -> list[tuple[str, float | Spread, str, float | None]]:
    from tasuki.actions.curves import CurveReader
    from tasuki.store.runs import RunFolder

    reader = CurveReader(RunFolder(run))
    first = _timed(reader.look)
    reader.read()  # finds the extremes of all blocks, once
    thin = spread([_timed(reader.read) for _ in range(MIN_ROUNDS)])
    idle = spread([_timed(reader.look) * 1e3 for _ in range(MIN_ROUNDS)])
    return [
        (f"curves: first look at {_LINES:,} lines of metrics", first, "s", None),
        ("curves: 2,000 points of each of them", thin, "s", None),
        ("curves: a look when nothing was added", idle, "ms", None),
    ]
