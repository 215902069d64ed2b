"""From the start of a supervisor to the start of its rank, as a job of Slurm sees it.

The supervisor is the real one (`python -P -m tasuki.jobs JOB`), in the environment of a job
that runs on the private cluster. It takes the run, writes that down, and starts the rank: a shell
script that notes the time and leaves. What the shell itself takes until then is measured beside it,
and subtracted. Every round begins with a fresh copy of the job and its run. Used by slurm.py.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from _measure import run_interleaved

BASELINE = "import json, subprocess"
OURS = "supervisor under Slurm → its rank"
HERE = "the same without Slurm"
SHELL = "the shell that stands for a rank"
ROUNDS = 25
_RANK = """\
#!/bin/bash
echo "$EPOCHREALTIME" >> "$BENCH_TOLD"
"""
_WITHIN_S = 60.0


def measure_starts(
    runs: Path, *, environment: Mapping[str, str], number: str
) -> dict[str, list[float]]:
    """`runs` holds one submitted job; job `number` runs."""
    rank = runs.parent / "rank.sh"
    rank.write_text(_RANK)
    rank.chmod(0o755)
    own = {
        **environment,
        "SLURM_JOB_ID": number,
        "SLURM_NODEID": "0",
        "SLURM_NNODES": "1",
        "BENCH_TOLD": str(runs.parent / "told.txt"),
    }
    cases: dict[str, Callable[[], float]] = {
        BASELINE: lambda: _time([sys.executable, "-c", BASELINE], own),
        OURS: lambda: _start(_supervise(_copy(runs, rank, backend="slurm")), own),
        HERE: lambda: _start(_supervise(_copy(runs, rank, backend="local")), own),
        SHELL: lambda: _start([str(rank)], own),
    }
    taken = run_interleaved(cases, rounds=ROUNDS)
    for name in (OURS, HERE):
        taken[name] = [
            all_s - own_s for all_s, own_s in zip(taken[name], taken[SHELL], strict=True)
        ]
    return taken


def _copy(runs: Path, rank: Path, *, backend: str) -> Path:
    """The job's folder in a copy of all runs, with our rank in place of Python."""
    copied = runs.parent / "copied"
    shutil.rmtree(copied, ignore_errors=True)
    shutil.copytree(runs, copied)
    [lanes] = copied.glob(".jobs/*/lanes.json")
    value = json.loads(lanes.read_text())
    lanes.write_text(json.dumps({**value, "python": str(rank), "backend": backend}))
    return lanes.parent


def _supervise(job: Path) -> list[str]:
    return [sys.executable, "-P", "-m", "tasuki.jobs", str(job)]


def _start(command: list[str], environment: Mapping[str, str]) -> float:
    """Until a rank notes the time."""
    told = Path(environment["BENCH_TOLD"])
    told.unlink(missing_ok=True)
    began = time.time()
    subprocess.run(
        command,
        env=environment,
        capture_output=True,
        timeout=_WITHIN_S,
        check=False,  # a rank that leaves without a word is a failure to it
    )
    if not told.exists():
        sys.exit(f"error: no rank was started by {command}")
    return float(told.read_text().split()[0]) - began


def _time(command: list[str], environment: Mapping[str, str]) -> float:
    began = time.time()
    subprocess.run(command, env=environment, capture_output=True, timeout=_WITHIN_S, check=True)
    return time.time() - began
