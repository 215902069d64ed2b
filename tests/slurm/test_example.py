"""What people bring to a real cluster: the examples, as their READMEs say, and a script of their
own that they submit by hand."""

from __future__ import annotations

import json
import shutil
import subprocess
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
from tests.slurm.project import ROOT, SlurmProject, take_all_nodes, wait


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_language_model_is_preempted_on_a_cluster_and_ends_as_an_undisturbed_local_run(
    cluster, tmp_path
):
    folders = [tmp_path / "submitted", tmp_path / "here"]
    for folder in folders:
        ignored = shutil.ignore_patterns("data", "runs")
        shutil.copytree(ROOT / "examples" / "preemptible_lm", folder, ignore=ignored)
        subprocess.run([sys.executable, "generate.py"], cwd=folder, check=True, timeout=60)
    submitted, here = (SlurmProject(folder, cluster, "lm") for folder in folders)
    words = ("--config", "quick", "--set", "cluster.partition=low", "--set", "cluster.memory=400M")
    submitted.tasuki("submit", *words)
    submitted.wait(lambda: (submitted.status()["step"] or 0) >= 60, "training", 120)
    take_all_nodes(cluster, tmp_path / "high")
    here.tasuki("run", "--config", "quick")
    submitted.wait(submitted.run.is_complete, "complete")
    assert submitted.status()["preemptions"] == 1
    weights = [
        p.run.stage(submitted.status()["stages"][0]["name"]).weights for p in (submitted, here)
    ]
    assert weights[0].read_bytes() == weights[1].read_bytes()


@pytest.mark.long
@pytest.mark.timeout(600)
def test_five_adapted_models_are_trained_and_evaluated_in_one_job_of_a_cluster(cluster, tmp_path):
    folder = tmp_path / "submitted"
    ignored = shutil.ignore_patterns("base", "runs*")
    shutil.copytree(ROOT / "examples" / "lora_five", folder, ignore=ignored)
    subprocess.run([sys.executable, "generate.py"], cwd=folder, check=True, timeout=200)
    project = SlurmProject(folder, cluster, "exp3")
    project.tasuki("submit", "--set", "cluster.partition=low", "--set", "cluster.memory=3G")
    names = [f"exp{number}" for number in range(1, 6)]
    runs = [SlurmProject(folder, cluster, name).run for name in names]
    project.wait(lambda: all(run.is_complete() for run in runs), "complete", 500)
    (order,) = (folder / "runs" / ".jobs").glob("*/slurm.json")
    assert len(json.loads((order.parent / "lanes.json").read_text())["lanes"]) == 4
    for run in runs:
        results = json.loads((run.path / "final_results.json").read_text())
        assert results["metrics"]["loss"] < 1.2


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
    wait(whole.is_complete)
    run = submit(cluster, tmp_path / "p", pause=0.3)
    wait(lambda: read_metrics(run))
    take_all_nodes(cluster, tmp_path / "high")
    wait(run.is_complete)
    checks = compare_runs(run, whole, ["train"]).checks
    assert checks and [what for what, is_equal in checks if not is_equal] == []
    first, *_, last = tell_why(run, now=time.time())["attempts"]
    assert first["ending"] == "handed-over" and first["steps_lost"] == 0, first
    assert last["is_complete"] and last["from_step"] == first["saved_step"], last
