"""examples/preemptible_lm on a real cluster, as its README says."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import pytest

from tests.slurm.project import ROOT, SlurmProject, take_all_nodes


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
