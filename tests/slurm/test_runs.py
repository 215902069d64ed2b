"""Submitted once, a run comes back finished: through preemptions of every kind, time limits, lost
nodes, dead supervisors and a controller that is away."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from pathlib import Path

import pytest

from tasuki.checkpoint.lineage import lineage
from tests.slurm.project import (
    SlurmProject,
    differences,
    make_slurm_project,
    run_here,
    take_all_nodes,
)

pytestmark = pytest.mark.timeout(600)
SHORT = [{"name": "one", "data": "d", "epochs": 3}]
BRIEF = {
    "recipe": "Brief",
    "stages": [{"name": "one", "data": "d", "epochs": 100}],
    "params": {"pause": 0.2},
    "defaults": {"save": {"every": "50 steps"}, "log_every": "50 steps"},
}
"""Two minutes in the first attempt, seconds in others."""
PREEMPTED, LIMIT, DONE = ("handed-over", "preempted"), ("handed-over", "limit"), ("done", "none")


@pytest.fixture(scope="module")
def undisturbed(cluster, tmp_path_factory):
    """The same runs without a disturbance, by the local backend."""
    made = {}

    def make(project):
        key = (project.folder / "tasuki.yaml").read_text().replace(project.name, "")
        spec = json.loads(key)
        spec["cluster"] = {key: spec["cluster"].get(key) for key in ("gpus", "nodes")}
        name = json.dumps(spec)
        if name not in made:
            made[name] = run_here(project, tmp_path_factory.mktemp("whole") / "p")
        return made[name]

    return make


@pytest.mark.parametrize(
    "partitions",
    [["low"], pytest.param(["low", "grace", "cancel"], marks=pytest.mark.long)],
    ids=["one", "all"],
)
def test_in_every_partition_a_preempted_run_comes_back_and_ends_as_if_undisturbed(
    cluster, tmp_path, undisturbed, partitions
):
    """At once: grace 0, a grace of 20 s, and a partition that cancels its jobs."""
    projects = {
        name: make_slurm_project(cluster, tmp_path / name, partition=name, **BRIEF)
        for name in partitions
    }
    for project in projects.values():
        project.tasuki("submit")
    for project in projects.values():
        project.wait_for_step(1)
    take_all_nodes(cluster, tmp_path / "high")
    undisturbed(projects["low"])  # while they wait to come back
    for project in projects.values():
        project.wait_until_complete()
    for name, project in projects.items():
        assert project.ends() == [PREEMPTED, DONE], (name, project.logs())
        assert project.recomputed() == 0, name
        assert differences(undisturbed(project), project) == [], name
        assert "TIMEOUT" not in project.states()
        check_why(project, name)


def check_why(project: SlurmProject, partition: str) -> None:
    """What Slurm did is named, by its own numbers, and the ledger adds up."""
    told = json.loads(project.tasuki("why", "exp", "--json"))
    parts = told["ledger"]["parts"]
    assert sum(parts.values()) == pytest.approx(told["ledger"]["wall_s"], abs=1e-6)
    first, last = told["attempts"]
    words = (
        rf"preempted in partition `{partition}` after [\dms.]+; saved step \d+ in [\d.]+m?s; "
        r"0 steps lost; back after [\d.]+"
    )
    assert re.match(words, first["sentence"]), first
    assert (first["scheduler_job"], first["partition"]) == (project.number, partition)
    assert first["saved_step"] == first["to_step"] == last["from_step"]
    assert last["sentence"].startswith("complete after")


@pytest.mark.long
def test_a_run_longer_than_its_limit_goes_from_job_to_job_and_none_ends_in_timeout(
    cluster, tmp_path, undisturbed
):
    # Slurm's own limit is a minute: a busy machine has 20 s more to end.
    project = make_slurm_project(cluster, tmp_path / "p", time_limit="40s", **BRIEF)
    project.tasuki("submit")
    project.wait_for_step(1)
    undisturbed(project)  # beside it
    project.wait_until_complete()
    ends = project.ends()
    assert ends[0] == LIMIT and ends[-1] == DONE, project.logs()
    assert project.recomputed() == 0
    assert set(project.states()) <= {"PENDING", "COMPLETED"}, project.states()
    assert differences(undisturbed(project), project) == []


@pytest.mark.long
@pytest.mark.parametrize("partition", ["low", "grace", "cancel"])
def test_a_plain_scancel_is_a_persons_word_and_leaves_a_run_that_can_be_resumed(
    cluster, tmp_path, partition
):
    project = make_slurm_project(
        cluster, tmp_path / "p", evaluates=False, partition=partition, **BRIEF
    )
    project.tasuki("submit")
    project.wait_for_step(1)
    cluster.run("scancel", project.number)
    project.wait(lambda: not project.queued(), "out of the queue")
    status = project.status()
    assert (status["state"], status["reason"]) == (
        "cancelled",
        "its job was cancelled with scancel",
    ), project.logs()
    (only,) = json.loads(project.tasuki("why", "exp", "--json"))["attempts"]
    assert only["sentence"].startswith("cancelled after"), only
    project.tasuki("resume", "exp")
    project.wait_until_complete()
    assert project.recomputed() == 0


def test_a_scancel_of_a_job_that_waits_keeps_the_later_jobs_of_its_plan_away_too(cluster, tmp_path):
    stages = [
        {"name": name, "data": "d", "epochs": 20, "expect": {"wall": "50m"}} for name in ("a", "b")
    ]
    project = make_slurm_project(cluster, tmp_path / "p", stages=stages, time_limit="1h")
    project.tasuki("submit", "--extra", "hold")
    first, second = sorted((line.split()[0] for line in project.queued()), key=int)
    cluster.run("scancel", first)
    cluster.run("scontrol", "release", second)
    project.wait(lambda: not project.queued(), "out of the queue")
    assert project.status()["state"] == "cancelled", project.logs()
    assert project.attempts() == []


@pytest.mark.long
def test_a_scancel_in_the_grace_of_a_preemption_stays_a_cancel(cluster, tmp_path):
    project = make_slurm_project(cluster, tmp_path / "p", partition="grace", params={"pause": 3})
    project.tasuki("submit")
    project.wait_for_step(1, more=1)
    take_all_nodes(cluster, tmp_path / "high")
    shown = ("scontrol", "show", "job", project.number)
    project.wait(lambda: "PreemptTime=None" not in cluster.run(*shown), "in its grace")
    cluster.run("scancel", project.number)
    project.wait(lambda: not project.queued(), "out of the queue")
    assert project.status()["state"] == "cancelled", project.logs()


@pytest.mark.long
def test_at_the_cap_of_its_preemptions_a_run_stops_though_slurm_requeues_it(cluster, tmp_path):
    stages = [{"name": "one", "data": "d", "epochs": 400}]
    project = make_slurm_project(cluster, tmp_path / "p", stages=stages, requeue=1)
    project.tasuki("submit")
    for number in (1, 2):
        project.wait_for_step(number)
        take_all_nodes(cluster, tmp_path / f"high-{number}")
        project.wait(lambda n=number: len(project.ends()) == n and project.ends()[-1][0], "over")
    project.wait(lambda: not project.queued(), "out of the queue")
    assert project.ends() == [PREEMPTED, PREEMPTED], project.logs()
    assert project.status()["state"] == "handed-over"


@pytest.mark.long
def test_what_fails_at_once_is_held_after_three_attempts_with_its_reason_in_status(
    cluster, tmp_path
):
    params = {"fail_at": 0, "pause": 0.0}
    project = make_slurm_project(cluster, tmp_path / "p", params=params)
    project.tasuki("submit")
    project.wait(lambda: project.try_tasuki("status", "--json").stdout.count('"held"'), "held")
    status = project.status()
    assert status["attempts"] == 3 and "planted failure" in status["reason"], status
    project.wait(lambda: not project.queued(), "out of the queue")


@pytest.mark.long
def test_the_ranks_of_two_nodes_are_preempted_and_resume_bit_for_bit(
    cluster, tmp_path, undisturbed
):
    project = make_slurm_project(cluster, tmp_path / "p", nodes=2, gpus=2, cpus=2, **BRIEF)
    project.tasuki("submit")
    project.wait_for_step(1, more=12)
    take_all_nodes(cluster, tmp_path / "high")
    undisturbed(project)  # while it waits to come back
    project.wait_until_complete()
    assert project.ends() == [PREEMPTED, DONE], project.logs()
    assert differences(undisturbed(project), project) == []


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_with_no_hand_on_them_runs_end_bit_for_bit_through_three_preemptions_and_two_limits(
    cluster, tmp_path, undisturbed
):
    stages = [{"name": "one", "data": "d", "epochs": 400}]
    projects = [
        make_slurm_project(
            cluster, tmp_path / name, partition=name, stages=stages, time_limit="40s"
        )
        for name in ("low", "grace", "cancel")
    ]
    for project in projects:
        project.tasuki("submit")
    for number in range(3):
        for project in projects:
            project.wait(lambda p=project, n=number: len(p.attempts()) > 2 * n, "going on")
            project.wait_for_step(len(project.attempts()))
        take_all_nodes(cluster, tmp_path / f"high-{number}")
        for project in projects:
            wanted = number + 1
            project.wait(lambda p=project, w=wanted: p.ends().count(PREEMPTED) >= w, "preempted")
    for project in projects:
        project.wait_until_complete(600)
        ends = project.ends()
        assert ends.count(PREEMPTED) >= 3 and ends.count(LIMIT) >= 2, project.logs()
        assert ends[-1] == DONE and len(set(ends)) == 3, ends
        assert project.recomputed() == 0
        assert set(project.states()) <= {"PENDING", "PREEMPTED", "COMPLETED", "CANCELLED"}
        assert differences(undisturbed(project), project) == []


def supervisors(project) -> dict[int, int]:
    """By node: the processes that supervise this run."""
    found = {}
    for folder in Path("/proc").iterdir():
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
            told = (folder / "environ").read_bytes().split(b"\0")
        except (OSError, ValueError):
            continue
        is_ours = any(str(project.folder).encode() in word for word in words)
        if b"tasuki.jobs" in words and is_ours and b"srun" not in words[0]:
            node = next((t for t in told if t.startswith(b"SLURM_NODEID=")), b"=0")
            if any(t.startswith(b"SLURM_PROCID=") for t in told):
                found[int(node.partition(b"=")[2])] = int(folder.name)
    return found


@pytest.mark.long
@pytest.mark.parametrize("node", [0, 1])
def test_a_killed_supervisor_brings_its_job_down_and_back(cluster, tmp_path, undisturbed, node):
    project = make_slurm_project(cluster, tmp_path / "p", nodes=2, gpus=2, cpus=2)
    project.tasuki("submit")
    project.wait_for_step(1, more=12)
    os.kill(supervisors(project)[node], signal.SIGKILL)
    project.wait_until_complete()
    assert len(project.attempts()) == 2, project.logs()
    assert differences(undisturbed(project), project) == []


@pytest.mark.long
def test_after_a_preemption_that_may_not_be_requeued_the_later_jobs_of_a_plan_stay_away(
    cluster, tmp_path
):
    stages = [
        {"name": name, "data": "d", "epochs": 20, "expect": {"wall": "50m"}} for name in ("a", "b")
    ]
    project = make_slurm_project(cluster, tmp_path / "p", stages=stages, time_limit="1h")
    project.tasuki("submit", "--no-requeue")
    assert len(project.jobs) == len(project.queued()) == 2
    project.wait_for_step(1)
    take_all_nodes(cluster, tmp_path / "high")
    project.wait(lambda: not project.queued(), "out of the queue")
    assert project.ends() == [PREEMPTED], project.logs()
    assert project.status()["state"] == "handed-over"
    first = project.attempts()[0]
    assert first.handed_over == first.diary, "the last step was not saved"


@pytest.mark.long
def test_a_job_has_its_setup_and_container_and_more_time_when_it_is_extended(cluster, tmp_path):
    project = make_slurm_project(
        cluster,
        tmp_path / "p",
        setup="env.sh",
        container="env BOXED=yes",
        python=sys.executable,
        time_limit="16s",
    )
    (project.folder / "env.sh").write_text("export FROM_SETUP=yes\n")
    recipes = project.folder / "recipes.py"
    checks = "assert (os.environ['FROM_SETUP'], os.environ['BOXED']) == ('yes', 'yes')\n"
    recipes.write_text(recipes.read_text() + checks)
    project.tasuki("submit", "--extra", "gres=gpu:1", code=2)
    project.tasuki("submit")
    project.tasuki("extend", "exp", "+30m")
    shown = cluster.run("scontrol", "show", "job", project.number)
    assert "TimeLimit=00:31:00" in shown, shown
    project.wait_until_complete()
    assert project.ends() == [DONE], "it did not use the time it was given"


@pytest.mark.long
def test_a_submitted_run_can_be_profiled_and_costs_what_its_job_held(cluster, tmp_path):
    project = make_slurm_project(cluster, tmp_path / "p", stages=SHORT, price_per_gpu_hour=1000)
    project.tasuki("submit", "--profile")
    project.wait_until_complete()
    told = [json.loads(path.read_text()) for path in project.run.profile.glob("*.json")]
    assert told and all(profile["parts"]["forward"] > 0 for profile in told)
    assert "Profile: " in project.tasuki("logs", "exp")
    run = project.status()
    assert run["cost"] == pytest.approx(1000 * run["gpu_hours"], rel=1e-3) and run["cost"] > 0
    said = project.try_tasuki("submit", "--profile")
    assert said.returncode == 0 and "nothing is left to profile" in said.stdout + said.stderr


@pytest.mark.long
def test_a_person_goes_back_on_slurm_and_a_requeue_goes_on_from_the_new_lineage(cluster, tmp_path):
    stages = [{"name": "one", "data": "d", "epochs": 8}]
    save = {"save": {"every": "7 steps", "keep": 9}}
    project = make_slurm_project(
        cluster, tmp_path / "p", evaluates=False, stages=stages, defaults=save
    )
    project.tasuki("submit")
    project.wait_until_complete()
    before = project.run.stage("one").weights.read_bytes()
    names = lineage(project.run)
    words = ("resume", "exp", "--from", names[-2], "--accept-change", "complete")
    assert "goes back to" in project.try_tasuki(*words, "--dry-run").stdout
    assert project.run.is_complete()
    project.tasuki(*words)
    number = project.number
    refused = project.try_tasuki("resume", "exp", "--from", names[-1], "--submit")
    assert refused.returncode == 1 and "tasuki cancel exp" in refused.stderr, refused
    project.wait_for_step(3)  # the word itself is number 2
    cluster.run("scontrol", "requeue", number)
    project.wait_until_complete()
    assert project.run.stage("one").weights.read_bytes() == before
    assert (project.run.aside_of(2) / "stages" / "one" / "weights.safetensors").is_file()
