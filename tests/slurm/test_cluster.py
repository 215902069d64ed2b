"""The private cluster says what is missing, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tasuki.testing.slurm import Cluster, Shape
from tasuki.testing.slurm.cluster import CONTROLLER, ClusterError
from tests.slurm.project import wait


def submit(cluster: Cluster, folder: Path, body: str, *options: str) -> str:
    script = folder / "job.sh"
    script.write_text(f"#!/bin/bash\n{body}\n")
    log = ("--open-mode=append", "-o", str(folder / "log"))
    return cluster.run("sbatch", "--parsable", *log, *options, str(script)).strip()


@pytest.mark.long
def test_nothing_is_left_of_a_cluster_that_was_stopped_even_of_steps_whose_node_was_killed(
    tmp_path,
):
    with Cluster(tmp_path / "c", Shape(nodes=1, gpus=0)) as cluster:
        job = submit(cluster, tmp_path, "srun sleep 601")
        wait(lambda: list(cluster._strays()), lambda: cluster.run("scontrol", "show", "job", job))
        cluster.end("node1", number=signal.SIGKILL)
        assert not cluster.is_alive("node1") and cluster.is_alive(CONTROLLER)
    assert list(cluster._strays()) == []
    assert not cluster.is_alive(CONTROLLER)


def test_it_says_what_is_missing_and_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setattr("tasuki.testing.slurm.cluster._find", lambda _name: None)
    with pytest.raises(ClusterError, match="no slurmctld") as caught:
        Cluster(tmp_path).start()
    assert "apt-get install" in caught.value.hint


def test_a_command_that_fails_is_told_in_slurms_own_words(cluster, tmp_path):
    with pytest.raises(ClusterError, match="nvalid partition"):
        submit(cluster, tmp_path, "true", "-p", "nowhere")


def test_jobs_of_another_cluster_around_us_are_not_meant(cluster, monkeypatch):
    monkeypatch.setitem(os.environ, "SLURM_JOB_ID", "7")
    assert "SLURM_JOB_ID" not in cluster.environment
