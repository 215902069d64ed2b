"""`status`: how often `tasuki status` of many jobs calls squeue.

The jobs are real ones: a project of that many experiments, submitted to the private cluster, where
all are held. A script named `squeue`, earlier on PATH, counts its calls and then becomes the real
one. A part of slurm.py.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from _measure import MIN_ROUNDS, Figure, run_timed, sized, spread
from tasuki.testing.slurm import Cluster

NUM_JOBS = sized(1000, smoke=3, variable="BENCH_JOBS")
_RECIPE = "class Recipe:\n    pass\n"
_COUNTING_SQUEUE = """\
#!/bin/bash
echo called >> {calls}
PATH=${{PATH#*:}} exec squeue "$@"
"""


def measure(cluster: Cluster, folder: Path) -> list[Figure]:
    project, calls = folder / "project", folder / "calls.txt"
    _make_project(project)
    environment = {
        **cluster.environment,
        "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
        "PATH": f"{_make_squeue(folder / 'bin', calls)}:{cluster.environment['PATH']}",
    }
    tasuki = [sys.executable, "-m", "tasuki"]
    run_timed([*tasuki, "submit", "--extra", "hold=true"], cwd=project, env=environment)
    _check_known([*tasuki, "status", "--json"], project, environment)
    cached = project / "runs" / ".jobs" / f"queue.{os.getuid()}.json"
    seconds: list[float] = []
    for _ in range(MIN_ROUNDS):
        cached.unlink(missing_ok=True)
        for expected in (1, 0):  # then again, within 15 s
            calls.write_text("")
            took = run_timed([*tasuki, "status"], cwd=project, env=environment)
            num_calls = len(calls.read_text().splitlines())
            if num_calls != expected:
                sys.exit(f"error: status called squeue {num_calls} times, expected {expected}")
            if expected:
                seconds.append(took.wall_s)
    what = f"`tasuki status` of {NUM_JOBS:,} jobs"
    return [
        Figure(f"{what}: calls of squeue, and within 15 s again", "", "1 and 0", unit=""),
        Figure("… seconds", "", spread(seconds), unit="s"),
    ]


def _make_project(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "recipes.py").write_text(_RECIPE)
    stages = [{"name": "one", "data": "made", "steps": 100}]
    value = {
        "project": "many",
        "recipe": "recipes:Recipe",
        "cluster": {"backend": "slurm", "gpu": "cpu", "gpus": 1, "cpus": 1, "partition": "low"},
        "experiments": {f"run-{number:04}": {"stages": stages} for number in range(NUM_JOBS)},
    }
    (folder / "tasuki.yaml").write_text(json.dumps(value))


def _make_squeue(programs: Path, calls: Path) -> Path:
    programs.mkdir()
    squeue = programs / "squeue"
    squeue.write_text(_COUNTING_SQUEUE.format(calls=calls))
    squeue.chmod(0o755)
    return programs


def _check_known(command: list[str], project: Path, environment: dict[str, str]) -> None:
    """Status knows the job of every run."""
    runs = json.loads(run_timed(command, cwd=project, env=environment).stdout)["runs"]
    known = [run for run in runs if run["queue"]]
    if len(known) != NUM_JOBS:
        sys.exit(f"error: status knows the jobs of {len(known)} runs, not of {NUM_JOBS}")
