"""What a run under Slurm loses to preemptions and kills, and what tasuki adds to Slurm's times.

Run as `python bench/slurm.py`, or with the names of some parts: `… slurm.py starts`. Four to eight
minutes. On a private cluster: a real controller and four nodes on this machine (Debian's packages;
`make system`).

    run     _interrupted.py  a run that is interrupted ten times, with a notice (preempted) or
                             without (SIGKILL): steps done twice, and the way from a TERM to
                             training again
    starts  _rank_starts.py  start of a supervisor to the start of its rank
    status  _many_jobs.py    `tasuki status` of 1,000 jobs: calls of squeue

Exit code 1 when a step is done twice after a notice, more than a save interval after a kill, or
when status calls squeue more often than it should: these do not depend on the machine's speed.
`BENCH_JOBS`: how many jobs. All processes read bytecode from a folder made for this run.
"""

from __future__ import annotations

import os
import sys
import tempfile
from functools import partial
from pathlib import Path

import _interrupted
import _many_jobs
import _rank_starts
from _measure import IS_SMOKE, run_bench
from _peers import environment, say
from tasuki.testing.slurm import Cluster, missing_programs

PARTS = {
    "run": _interrupted.measure,
    "starts": _rank_starts.measure,
    "status": _many_jobs.measure,
}


def main() -> int:
    if missing := missing_programs():
        if IS_SMOKE:
            say(f"without Slurm: {missing[0]} not found")
            return 0
        sys.exit(f"error: {missing[0]} not found\n\nhint: `make system` installs Slurm")
    with tempfile.TemporaryDirectory(prefix="tasuki-bench-") as name:
        folder = Path(name)
        _set_environment(folder / "bytecode")
        with Cluster(folder / "slurm") as cluster:
            parts = {name: partial(part, cluster) for name, part in PARTS.items()}
            return run_bench("slurm", parts, packages=("torch",))


def _set_environment(bytecode: Path) -> None:
    """Of this process, and so of Slurm, its jobs and all that is measured."""
    kept = environment()
    kept.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ.clear()
    os.environ.update(kept, PYTHONPYCACHEPREFIX=str(bytecode), NO_COLOR="1", COLUMNS="140")


if __name__ == "__main__":
    sys.exit(main())
