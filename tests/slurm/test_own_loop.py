"""A loop of one's own under a real srun: no job of tasuki's, a script that somebody submits."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from tasuki.commands.compare import compare_runs
from tasuki.commands.why import tell_why
from tasuki.runs.metrics import read_metrics
from tasuki.runs.runs import RunFolder
from tasuki.testing.slurm import Cluster
from tests.adapters.test_ranks import ALIKE
from tests.slurm.test_allocation import wait
from tests.slurm.test_runs import take_all_nodes

JOB = """#!/bin/bash
cd {folder}
export OMP_NUM_THREADS=1 PAUSE={pause}
srun -N1 -n2 {python} train.py
"""


def submit(cluster: Cluster, folder: Path, *, pause: float) -> RunFolder:
    """As somebody who knows Slurm does it by hand; the job comes back when it is preempted."""
    folder.mkdir()
    script = ALIKE.replace("time.sleep(0.03)", "time.sleep(float(os.environ['PAUSE']))")
    (folder / "train.py").write_text(script)
    (folder / "job.sh").write_text(JOB.format(folder=folder, pause=pause, python=sys.executable))
    more = ("--requeue", "-p", "low", "-n2", "-o", f"{folder}/out", "--open-mode=append")
    cluster.run("sbatch", *more, str(folder / "job.sh"))
    return RunFolder(folder / "runs" / "train")


@pytest.mark.long
@pytest.mark.timeout(300)
def test_ranks_of_a_real_srun_survive_a_preemption_and_end_as_if_undisturbed(cluster, tmp_path):
    whole = submit(cluster, tmp_path / "whole", pause=0)
    wait(whole.is_complete, 120)
    run = submit(cluster, tmp_path / "p", pause=0.3)
    wait(lambda: bool(read_metrics(run)), 120)
    take_all_nodes(cluster, tmp_path / "high")
    wait(run.is_complete, 180)
    checks = compare_runs(run, whole, ["train"]).checks
    assert checks and [what for what, is_equal in checks if not is_equal] == []
    first, *_, last = tell_why(run, now=time.time())["attempts"]
    assert first["ending"] == "handed-over" and first["steps_lost"] == 0, first
    assert last["is_complete"] and last["from_step"] == first["saved_step"], last
