"""Commands and scripts that know nothing of Slurm come back finished; all without torch, so that
the quick tests can try here what a scheduler does to a run."""

from __future__ import annotations

import json
import sys

import pytest

from tasuki.runs.attempts import read_attempt_ends
from tests.harness.commands import SCRIPT
from tests.slurm.project import SlurmProject, take_all_nodes

pytestmark = pytest.mark.timeout(600)
PREEMPTED, LIMIT, DONE = ("handed-over", "preempted"), ("handed-over", "limit"), ("done", "none")
TELL = 'import sys; open("told.jsonl", "a").write(sys.stdin.read())'
STAYS = ("python", "train.py", "20", "stays", "exit=75")
"""The first attempt does not end before it is told to."""


def make_project(
    cluster,
    folder,
    *,
    experiments: dict | None = None,
    script: str = SCRIPT,
    on: dict | None = None,
    **wanted: object,
) -> SlurmProject:
    """`wanted` goes into `cluster:`."""
    folder.mkdir(parents=True)
    (folder / "train.py").write_text(script)
    asked = {"gpu": "cpu", "gpus": 1, "cpus": 1, "memory": "200M", "partition": "low", **wanted}
    value = {"project": "t", "cluster": asked, "on": on, "experiments": experiments}
    spec = {key: one for key, one in value.items() if one is not None}
    (folder / "tasuki.yaml").write_text(json.dumps(spec))
    return SlurmProject(folder, cluster, name="train")


def steps(project: SlurmProject) -> list[int]:
    return [int(step) for step in (project.folder / "steps").read_text().split()]


def ends(project: SlurmProject, name: str = "train") -> list[tuple[str, str]]:
    run = SlurmProject(project.folder, project.cluster, name).run
    return [(e["ending"], e["cause"]) for e in read_attempt_ends(run).values() if e]


def wait_until_begun(project: SlurmProject, *names: str) -> None:
    project.wait(lambda: all((project.folder / name).exists() for name in names), "begun")


def test_a_typed_command_is_preempted_comes_back_and_finishes(cluster, tmp_path):
    project = make_project(cluster, tmp_path / "p", partition="cancel")
    # Whatever a setup does to its shell, and whatever the shell that submits has of other jobs.
    (project.folder / "env.sh").write_text("set -euo pipefail\nset -- a b\n")
    others = {"SLURM_RESTART_COUNT": "3", "SLURM_MEM_PER_CPU": "100", "SBATCH_EXPORT": "NONE"}
    project.tasuki("submit", "--set", "cluster.setup=env.sh", "--", *STAYS, **others)
    wait_until_begun(project, "began.1")
    take_all_nodes(cluster, tmp_path / "high")
    project.wait_until_complete()
    assert ends(project) == [PREEMPTED, DONE], project.logs()
    assert steps(project) == list(range(20)), "a step was lost or done twice"


def test_a_command_longer_than_its_limit_goes_from_job_to_job_and_none_ends_in_timeout(
    cluster, tmp_path
):
    project = make_project(cluster, tmp_path / "p", time_limit="20s", grace="5s")
    project.tasuki("submit", "--", *STAYS)
    project.wait_until_complete()
    assert ends(project) == [LIMIT, DONE], project.logs()
    assert steps(project) == list(range(20))
    assert set(project.states()) <= {"PENDING", "COMPLETED"}, project.states()


def test_cancel_ends_a_waiting_and_a_running_job_for_good_and_submit_goes_on(cluster, tmp_path):
    wanted = {
        "experiments": {"train": {"command": list(STAYS)}},
        "on": {"complete": [sys.executable, "-c", TELL]},
    }
    project = make_project(cluster, tmp_path / "p", partition="grace", **wanted)
    project.tasuki("submit", "--extra", "hold=true")
    waiting = project.status()
    assert waiting["state"] == "waiting" and "JobHeldUser" in waiting["reason"], waiting
    assert json.loads(project.tasuki("cancel", "train", "--json"))["state"] == "cancelled"
    assert project.queued() == []
    project.tasuki("submit")
    wait_until_begun(project, "began.1")
    project.tasuki("cancel", "train")
    project.wait(lambda: not project.queued(), "out of the queue")
    assert project.status()["state"] == "cancelled"
    assert [ending for ending, _ in ends(project)] == ["handed-over"], project.logs()
    project.tasuki("submit")
    project.wait_until_complete()
    assert ends(project)[-1] == DONE and steps(project) == list(range(20))
    (told,) = [json.loads(x) for x in (project.folder / "told.jsonl").read_text().splitlines()]
    assert (told["outcome"], told["attempt"]) == ("complete", 2), "told of its end, once"


TWO = """
import os, signal, sys, time

name, attempt = sys.argv[1], os.environ["TASUKI_ATTEMPT"]
signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
open(f"began.{name}.{attempt}", "w").close()
while attempt == "1":
    time.sleep(0.05)
"""


def test_runs_that_share_a_job_are_preempted_together_and_come_back_together(cluster, tmp_path):
    experiments = {
        name: {"command": ["python", "train.py", name], "gpus": 1, "expect": {"wall": "9s"}}
        for name in "ab"
    }
    wanted = {"gpus": 2, "cpus": 2, "experiments": experiments}
    project = make_project(cluster, tmp_path / "p", script=TWO, **wanted)
    project.tasuki("submit")
    wait_until_begun(project, "began.a.1", "began.b.1")
    take_all_nodes(cluster, tmp_path / "high")
    project.wait(lambda: ends(project, "a")[1:] and ends(project, "b")[1:], "back")
    project.wait(lambda: not project.queued(), "out of the queue")
    assert ends(project, "a") == ends(project, "b") == [PREEMPTED, DONE], project.logs()
    assert len(project.jobs) == 1 and len(project.states()) == 2, project.states()
