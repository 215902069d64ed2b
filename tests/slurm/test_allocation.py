"""From one answer of a real controller a job knows how long it has, and why it was told to end."""

from __future__ import annotations

import pytest

from tasuki.clock import SystemClock
from tasuki.runs.values import Cause
from tasuki.slurm.allocation import SlurmAllocation, cause_of
from tasuki.slurm.client import Answer, Slurm
from tasuki.slurm.text import parse_job
from tasuki.testing import FakeClock
from tasuki.testing.slurm.tick import preload_for_a_quick_tick
from tests.slurm.project import take_all_nodes, wait
from tests.slurm.recordings import VERSIONS, recorded

WHOLE = ("-N4", "--exclusive")
BODY = """#!/bin/bash
srun -N1 -n1 bash -c '
  cd {folder}
  trap "scontrol show job $SLURM_JOB_ID >half; mv half shown; exit" TERM
  touch ready
  while true; do sleep 0.05; done'
"""


def start(cluster, folder, *options: str) -> str:
    script = folder / "job.sh"
    script.write_text(BODY.format(folder=folder))
    more = ("--parsable", "--requeue", "-o", "/dev/null", *WHOLE, *options)
    job = cluster.run("sbatch", *more, str(script)).strip()
    wait((folder / "ready").exists)
    return job


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("notice", "cause"),
    [
        ("preempted", Cause.PREEMPTED),
        ("preempted_grace", Cause.PREEMPTED),
        ("preempted_cancel", Cause.PREEMPTED),
        ("scancel", Cause.CANCELLED),
        ("scancel_grace", Cause.CANCELLED),
        ("limit", Cause.LIMIT),
        ("signal", Cause.LOST),
    ],
)
def test_each_version_of_slurm_tells_a_job_why_it_must_end(version, notice, cause):
    shown = recorded(version, f"notice_{notice}")
    assert cause_of(parse_job(shown)) == cause, shown


@pytest.mark.long
@pytest.mark.parametrize(
    ("how", "partition", "cause"),
    [
        ("outrank", "low", Cause.PREEMPTED),
        ("outrank", "grace", Cause.PREEMPTED),
        ("outrank", "cancel", Cause.PREEMPTED),
        ("scancel", "low", Cause.CANCELLED),
        ("scancel", "grace", Cause.CANCELLED),
        ("limit", "low", Cause.LIMIT),
        ("signal", "low", Cause.LOST),
    ],
)
def test_a_job_knows_why_it_was_told_to_end(cluster, tmp_path, how, partition, cause):
    if how == "limit" and preload_for_a_quick_tick(tmp_path) is None:
        pytest.skip("no quick tick without a C compiler for x86-64: the stock one takes 30 s")
    job = start(cluster, tmp_path, "-p", partition, "-t", "5")
    jobs = [job]
    if how == "outrank":
        jobs.append(take_all_nodes(cluster, tmp_path))
    elif how == "limit":
        cluster.run("scontrol", "update", f"jobid={job}", "EndTime=now+1")
    elif how == "signal":
        cluster.run("scancel", "-s", "TERM", job)
    else:
        cluster.run("scancel", job)
    wait((tmp_path / "shown").exists)
    shown = (tmp_path / "shown").read_text()
    cluster.run("scancel", *jobs)
    wait(lambda: not cluster.run("squeue", "-h", "-j", ",".join(jobs)).strip())
    assert cause_of(parse_job(shown)) == cause, shown


@pytest.mark.long
def test_the_time_left_follows_an_extension(cluster, tmp_path):
    job = start(cluster, tmp_path, "-t", "5")
    slurm = Slurm(environment=cluster.environment, clock=SystemClock())
    allocation = SlurmAllocation(slurm, job, limit_s=1.0, clock=SystemClock())
    before = allocation.remaining_s()
    slurm.set_limit(job, "+00:10:00")
    after = allocation.remaining_s()
    cluster.run("scancel", job)
    assert before is not None and 240 < before <= 300
    assert after is not None and 590 < after - before <= 600


def test_where_the_controller_is_silent_the_planned_limit_counts_and_a_notice_is_a_preemption():
    clock = FakeClock()
    silent = Slurm(environment={}, clock=clock, run=lambda *_: Answer(1, "", "Socket timed out"))
    allocation = SlurmAllocation(silent, "7", limit_s=100_000.0, clock=clock)
    clock.sleep(60)
    remaining = allocation.remaining_s()
    assert remaining is not None and 99_900 < remaining <= 99_940
    assert allocation.cause_of_notice() is Cause.PREEMPTED
