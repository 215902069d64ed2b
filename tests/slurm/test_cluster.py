"""The private cluster is a real Slurm: it gives GPUs, preempts, ends jobs on time, and leaves
nothing behind."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tasuki.testing.slurm import Cluster, Shape
from tasuki.testing.slurm.cluster import CONTROLLER, ClusterError
from tasuki.testing.slurm.tick import preload_for_a_quick_tick


def submit(cluster: Cluster, folder: Path, body: str, *options: str) -> str:
    script = folder / "job.sh"
    script.write_text(f"#!/bin/bash\n{body}\n")
    log = ("--open-mode=append", "-o", str(folder / "log"))
    return cluster.run("sbatch", "--parsable", *log, *options, str(script)).strip()


def wait_for(cluster: Cluster, job: str, *states: str, within_s: float = 60.0) -> None:
    until = time.monotonic() + within_s
    while (state := state_of(cluster, job)) not in states:
        assert time.monotonic() < until, (state, cluster.run("scontrol", "show", "job", job))
        time.sleep(0.05)


def state_of(cluster: Cluster, job: str) -> str:
    return cluster.run("squeue", "-h", "-t", "all", "-j", job, "-o", "%T").strip()


def test_a_job_gets_the_gpus_it_asks_for_on_as_many_nodes(cluster, tmp_path):
    body = "srun bash -c 'echo $SLURM_PROCID $CUDA_VISIBLE_DEVICES'"
    options = ("-N2", "--ntasks-per-node=1", "--gres=gpu:2")
    job = submit(cluster, tmp_path, body, *options)
    wait_for(cluster, job, "COMPLETED")
    assert sorted((tmp_path / "log").read_text().splitlines()) == ["0 0,1", "1 0,1"]


@pytest.mark.long
def test_a_job_of_a_low_partition_is_preempted_and_comes_back(cluster, tmp_path):
    whole = ("-N4", "--exclusive")
    body = "echo start ${SLURM_RESTART_COUNT:-0}; exec sleep 600"
    low = submit(cluster, tmp_path, body, *whole)
    wait_for(cluster, low, "RUNNING")
    (tmp_path / "high").mkdir()
    high = submit(cluster, tmp_path / "high", "true", *whole, "-p", "high")
    wait_for(cluster, high, "COMPLETED")
    until = time.monotonic() + 60
    while "start 1" not in (tmp_path / "log").read_text().splitlines():
        assert time.monotonic() < until, cluster.run("squeue")
        time.sleep(0.05)
    cluster.run("scancel", low)
    wait_for(cluster, low, "CANCELLED")


def test_a_time_limit_ends_a_job_within_seconds(cluster, tmp_path):
    if preload_for_a_quick_tick(tmp_path) is None:
        pytest.skip("no quick tick without a C compiler for x86-64: the stock one takes 30 s")
    job = submit(cluster, tmp_path, "exec sleep 600", "-t", "1")
    wait_for(cluster, job, "RUNNING")
    cluster.run("scontrol", "update", f"jobid={job}", "EndTime=now+1")
    began = time.monotonic()
    wait_for(cluster, job, "TIMEOUT")
    assert time.monotonic() - began < 25


@pytest.mark.long
def test_nothing_is_left_of_a_cluster_that_was_stopped_even_of_steps_whose_node_was_killed(
    tmp_path,
):
    with Cluster(tmp_path / "c", Shape(nodes=1, gpus=0)) as cluster:
        job = submit(cluster, tmp_path, "srun sleep 601")
        wait_for(cluster, job, "RUNNING")
        while not list(cluster._strays()):
            time.sleep(0.05)
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
