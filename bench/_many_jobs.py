"""`tasuki status` of many jobs: how often it asks the controller, and what it costs.

The jobs are real ones: a project of so many experiments, submitted to the private cluster, where
all are held. `squeue` is counted by a script of that name before it on PATH, which then becomes the
real one. Used by slurm.py.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from _measure import MIN_ROUNDS
from _peers import say
from tasuki.testing.slurm import Cluster

BASELINE = "import json, subprocess"
ASKED, AGAIN = "status", "status, again within 15 s"
WITHOUT_SPEC, AS_JSON = "the same, --runs: no spec is read", "the same, --json"
_WITHIN_S = 600.0
_RECIPE = "class Recipe:\n    pass\n"
_COUNTED = """\
#!/bin/bash
echo asked >> {told}
PATH=${{PATH#*:}} exec squeue "$@"
"""


class Answer(NamedTuple):
    wall_s: float
    cpu_s: float
    asked: int
    """Calls of squeue."""


def measure_status(
    cluster: Cluster, folder: Path, *, environment: Mapping[str, str], jobs: int
) -> dict[str, list[Answer]]:
    _make_project(folder / "project", jobs)
    own = {**environment, "PATH": f"{_counting(folder)}:{environment['PATH']}"}
    queue = folder / "project" / "runs" / ".jobs" / f"queue.{os.getuid()}.json"
    told = folder / "asked.txt"

    def ask(*words: str) -> Answer:
        return _run([sys.executable, *words], folder / "project", own, told)

    ask("-m", "tasuki", "submit", "--extra", "hold=true")
    say(f"{len(cluster.run('squeue', '-h', '-t', 'PD').splitlines())} jobs wait in the queue")
    _check(folder / "project", own, jobs)
    found: dict[str, list[Answer]] = {
        name: [] for name in (BASELINE, ASKED, AGAIN, WITHOUT_SPEC, AS_JSON)
    }
    for _ in range(MIN_ROUNDS):
        queue.unlink(missing_ok=True)
        answers = {
            BASELINE: ask("-c", BASELINE),
            ASKED: ask("-m", "tasuki", "status"),
            AGAIN: ask("-m", "tasuki", "status"),
            WITHOUT_SPEC: ask("-m", "tasuki", "status", "--runs", "runs"),
            AS_JSON: ask("-m", "tasuki", "status", "--runs", "runs", "--json"),
        }
        for name, answer in answers.items():
            found[name].append(answer)
    return found


def _check(project: Path, environment: Mapping[str, str], jobs: int) -> None:
    """Status knows the job of every run."""
    command = [sys.executable, "-m", "tasuki", "status", "--json"]
    done = subprocess.run(
        command, cwd=project, env=environment, capture_output=True, timeout=_WITHIN_S, check=True
    )
    known = [run for run in json.loads(done.stdout)["runs"] if run["queue"]]
    if len(known) != jobs:
        sys.exit(f"error: status knows the jobs of {len(known)} runs, not of {jobs}")


def _make_project(folder: Path, jobs: int) -> None:
    folder.mkdir(parents=True)
    (folder / "recipes.py").write_text(_RECIPE)
    stages = [{"name": "one", "data": "made", "steps": 100}]
    value = {
        "project": "many",
        "recipe": "recipes:Recipe",
        "cluster": {"backend": "slurm", "gpu": "cpu", "gpus": 1, "cpus": 1, "partition": "low"},
        "experiments": {f"run-{number:04}": {"stages": stages} for number in range(jobs)},
    }
    (folder / "tasuki.yaml").write_text(json.dumps(value))


def _counting(folder: Path) -> Path:
    """A folder for PATH with a squeue that is counted."""
    programs = folder / "bin"
    programs.mkdir()
    squeue = programs / "squeue"
    squeue.write_text(_COUNTED.format(told=folder / "asked.txt"))
    squeue.chmod(0o755)
    return programs


def _run(command: Sequence[str], cwd: Path, environment: Mapping[str, str], told: Path) -> Answer:
    told.write_text("")
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.monotonic()
    done = subprocess.run(
        command,
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=_WITHIN_S,
        check=False,
    )
    wall = time.monotonic() - began
    if done.returncode:
        sys.exit(f"error: {' '.join(command[1:])} ended with {done.returncode}\n{done.stderr}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Answer(wall, used, len(told.read_text().splitlines()))
