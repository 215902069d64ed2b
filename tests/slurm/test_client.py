"""Slurm is asked again while it is busy, told once, and its refusals are said in its own words."""

from __future__ import annotations

import os

import pytest

from tasuki.clock import SystemClock
from tasuki.slurm.client import (
    Answer,
    NoSlurm,
    Slurm,
    SlurmRefused,
    SlurmSilent,
    plain_environment,
)
from tasuki.testing import FakeClock
from tasuki.testing.slurm.cluster import CONTROLLER
from tests.slurm.recordings import VERSIONS, recorded_answers

BUSY = Answer(1, "", "slurm_load_jobs error: Unable to contact slurm controller (connect failure)")
TAKE_ANY_DEPENDENCY = ("20.11", "22.05")
"""They take a job that waits for one that nobody knows."""
of_each_version = pytest.mark.parametrize("version", VERSIONS)


class Told:
    """Answers that were recorded, one after another; the last is repeated."""

    def __init__(self, *answers: Answer | Exception) -> None:
        self.answers, self.commands = list(answers), []

    def __call__(self, command, environment, within_s):
        self.commands.append(list(command))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


def asking(*answers: Answer | Exception) -> tuple[Slurm, Told, FakeClock]:
    told, clock = Told(*answers), FakeClock()
    return Slurm(environment={}, clock=clock, run=told), told, clock


@pytest.fixture
def live(cluster) -> Slurm:
    return Slurm(environment=cluster.environment, clock=SystemClock())


def test_a_question_is_asked_again_while_the_controller_is_busy():
    slurm, told, clock = asking(BUSY, TimeoutError("late"), Answer(0, "slurm 23.11.4", ""))
    began = clock.monotonic()
    assert slurm.version() == (23, 11, 4)
    assert len(told.commands) == 3 and clock.monotonic() > began


def test_a_controller_that_stays_silent_is_said_to_be_so():
    slurm, told, _ = asking(BUSY)
    with pytest.raises(SlurmSilent, match="Unable to contact") as caught:
        slurm.queue("me")
    assert len(told.commands) == 4 and "later" in caught.value.hint


@of_each_version
@pytest.mark.parametrize(
    "request_", ["sbatch", "scancel", "requeue", "show", "squeue", "partition", "config"]
)
def test_in_each_version_a_controller_that_is_down_is_silent_and_does_not_refuse(version, request_):
    slurm, _, _ = asking(recorded_answers(version)[f"down_{request_}"])
    requests = {
        "sbatch": lambda: slurm.submit(["job.sh"]),
        "scancel": lambda: slurm.cancel("1"),
        "requeue": lambda: slurm.requeue("1"),
        "show": lambda: slurm.show("1"),
        "squeue": lambda: slurm.queue("me"),
        "partition": slurm.partitions,
        "config": slurm.settings,
    }
    with pytest.raises(SlurmSilent) as caught:
        requests[request_]()
    assert "later" in caught.value.hint


@of_each_version
def test_in_each_version_a_job_that_nobody_knows_is_none(version):
    slurm, _, _ = asking(recorded_answers(version)["show_no_job"])
    assert slurm.show("999999") is None


@of_each_version
def test_in_each_version_the_queue_of_a_user_that_nobody_knows_is_not_just_empty(version):
    slurm, _, _ = asking(recorded_answers(version)["squeue_no_user"])
    with pytest.raises(SlurmRefused, match=r"`squeue` says: Invalid user: nobody-here$"):
        slurm.queue("nobody-here")


@of_each_version
@pytest.mark.parametrize("name", ["requeue_no_job", "requeue_pending", "update_more_time"])
def test_in_each_version_a_request_that_is_refused_says_so(version, name):
    slurm, told, _ = asking(recorded_answers(version)[name])
    with pytest.raises(SlurmRefused, match="for job"):
        slurm.requeue("1")
    assert len(told.commands) == 1


@of_each_version
@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("sbatch_partition", "write one into `cluster.partition`"),
        ("sbatch_time_limit", "`cluster.time_limit`"),
        ("sbatch_gpus", "`cluster.gpus`"),
        ("sbatch_memory", "`memory`"),
        ("sbatch_nodes", "`cluster.nodes`"),
        ("sbatch_gres", "`cluster.gpus`"),
        ("sbatch_constraint", "`cluster.constraint`"),
        ("sbatch_account", "`cluster.account`"),
        ("sbatch_qos", "`cluster.qos`"),
        ("sbatch_submit_limit", "so much at once"),
        ("sbatch_dependency", "submit again"),
        ("no_munge_sbatch", "munge"),
    ],
)
def test_in_each_version_a_refusal_comes_with_what_to_change(version, name, hint):
    answer = recorded_answers(version).get(name)
    if answer is None:
        pytest.skip("recorded without accounting")
    slurm, _, _ = asking(answer)
    if name == "sbatch_dependency" and version in TAKE_ANY_DEPENDENCY:
        assert slurm.submit(["job.sh"]).isdecimal()
        return
    with pytest.raises(SlurmRefused, match=r"^`sbatch` says: (?!.*sbatch: error)") as caught:
        slurm.submit(["job.sh"])
    assert hint in caught.value.hint


@pytest.mark.parametrize("request_", ["submit", "cancel", "requeue"])
def test_a_request_is_never_made_twice(request_, tmp_path):
    slurm, told, _ = asking(TimeoutError("late"))
    with pytest.raises(SlurmSilent):
        if request_ == "submit":
            slurm.submit([str(tmp_path / "job.sh")])
        else:
            getattr(slurm, request_)("7")
    assert len(told.commands) == 1


def test_without_slurm_it_says_where_to_go():
    slurm, _, _ = asking(FileNotFoundError())
    with pytest.raises(NoSlurm, match="no `sinfo` here") as caught:
        slurm.version()
    assert "login node" in caught.value.hint


def test_nothing_in_the_environment_changes_what_is_printed():
    kept = plain_environment(
        {"PATH": "/bin", "SQUEUE_FORMAT": "%i", "SLURM_TIME_FORMAT": "relative", "SLURM_CONF": "c"}
    )
    assert kept == {"PATH": "/bin", "SLURM_CONF": "c", "LC_ALL": "C"}


def test_on_a_real_cluster_a_job_is_submitted_shown_extended_requeued_and_cancelled(live, tmp_path):
    script = tmp_path / "job.sh"
    script.write_text("#!/bin/bash\nexec sleep 600\n")
    comment = 'p-1; touch "$HOME"/x `id`'
    options = ["-o", "/dev/null", "-t", "30", f"--comment={comment}", "-H"]
    job = live.submit([*options, str(script)])
    (queued,) = [one for one in live.queue(str(os.getuid())) if one.number == job]
    assert (queued.state, queued.comment) == ("PENDING", comment)
    live.set_limit(job, "+01:00:00")
    shown = live.show(job)
    assert shown is not None and shown.limit_s == 5400
    live.cancel(job)
    shown = live.show(job)
    assert shown is not None and shown.state == "CANCELLED"
    assert live.show("999999") is None


@pytest.mark.long  # each question to a controller that is gone takes 10 s
def test_a_controller_that_comes_back_is_heard_again(cluster, live):
    cluster.end(CONTROLLER)
    slept = []

    class Restarting(FakeClock):
        def sleep(self, seconds: float) -> None:
            slept.append(seconds)
            if len(slept) == 2:
                cluster.start_controller()
            SystemClock().sleep(1.0)

    patient = Slurm(environment=cluster.environment, clock=Restarting())
    assert next(partition.name for partition in patient.partitions()) == "low"
    assert slept
