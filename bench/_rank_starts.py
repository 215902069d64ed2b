"""`starts`: from the start of a supervisor to the start of its rank, as a job of Slurm sees it.

The supervisor is the real one (`python -P -m tasuki.jobs JOB`), in the environment of a job
that runs on the private cluster. It takes the run, records that, and starts the rank: a shell
script that notes the time and leaves. What the shell takes until then is measured in turn with it,
and subtracted. Every round starts with a fresh copy of the job and its run. A part of slurm.py.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from _interrupted import PlainJob, make_project
from _measure import Figure, ratios, run_interleaved, run_timed, sized
from tasuki.testing.slurm import Cluster

ROUNDS = sized(25, smoke=1)
BASELINE = "import json, subprocess"
_RANK = """\
#!/bin/bash
echo "$EPOCHREALTIME" >> "$BENCH_STARTED"
"""
_WITHIN_S = 60.0


def measure(cluster: Cluster, folder: Path) -> list[Figure]:
    settings = {"backend": "slurm", "partition": "low", "memory": "200M"}
    project = make_project(cluster, folder / "project", settings)
    project.tasuki("submit", "--extra", "hold=true")
    plain = PlainJob(cluster, folder)
    rank = folder / "rank.sh"
    rank.write_text(_RANK)
    rank.chmod(0o755)
    environment = {
        **project.environment,
        "SLURM_JOB_ID": plain.number,
        "SLURM_NODEID": "0",
        "SLURM_NNODES": "1",
        "BENCH_STARTED": str(folder / "started.txt"),
    }
    runs = project.folder / "runs"

    def supervise() -> float:
        command = [sys.executable, "-P", "-m", "tasuki.jobs", str(_copy_job(runs, rank))]
        return _start(command, environment)

    cases = {
        "baseline": lambda: run_timed([sys.executable, "-c", BASELINE], env=environment).wall_s,
        "supervisor": supervise,
        "shell": lambda: _start([str(rank)], environment),
    }
    taken = run_interleaved(cases, rounds=ROUNDS)
    cluster.run("scancel", plain.number)
    pairs = zip(taken["supervisor"], taken["shell"], strict=True)
    to_rank_s = [all_s - shell_s for all_s, shell_s in pairs]
    what = "a supervisor's start to its rank's"
    return [Figure(what, BASELINE, ratios(to_rank_s, taken["baseline"]), goal=3.0)]


def _copy_job(runs: Path, rank: Path) -> Path:
    """The job's folder in a copy of all runs, with the script in place of Python."""
    copied = runs.parent / "copied"
    shutil.rmtree(copied, ignore_errors=True)
    shutil.copytree(runs, copied)
    [job] = copied.glob(".jobs/*/lanes.json")
    job.write_text(json.dumps({**json.loads(job.read_text()), "python": str(rank)}))
    return job.parent


def _start(command: list[str], environment: Mapping[str, str]) -> float:
    """Seconds until a rank notes the time."""
    started_file = Path(environment["BENCH_STARTED"])
    started_file.unlink(missing_ok=True)
    began = time.time()
    subprocess.run(
        command,
        env=environment,
        capture_output=True,
        timeout=_WITHIN_S,
        check=False,  # a rank that leaves without a message is a failure to the supervisor
    )
    if not started_file.exists():
        sys.exit(f"error: no rank was started by {command}")
    return float(started_file.read_text().split()[0]) - began
