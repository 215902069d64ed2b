"""A script that knows nothing of tasuki, typed behind `tasuki submit --`, comes back finished."""

from __future__ import annotations

import json

import pytest

from tasuki.runs.attempts import read_attempt_ends
from tests.harness.commands import SCRIPT
from tests.slurm.project import SlurmProject, take_all_nodes

pytestmark = pytest.mark.timeout(600)
PREEMPTED, LIMIT, DONE = ("handed-over", "preempted"), ("handed-over", "limit"), ("done", "none")


def make_project(cluster, folder, **wanted: object) -> SlurmProject:
    folder.mkdir(parents=True)
    (folder / "train.py").write_text(SCRIPT)
    asked = {"gpu": "cpu", "gpus": 1, "cpus": 1, "memory": "200M", "partition": "low", **wanted}
    (folder / "tasuki.yaml").write_text(json.dumps({"project": "t", "cluster": asked}))
    return SlurmProject(folder, cluster, name="train")


def steps(project: SlurmProject) -> list[int]:
    return [int(step) for step in (project.folder / "steps").read_text().split()]


def ends(project: SlurmProject) -> list[tuple[str, str]]:
    return [(e["ending"], e["cause"]) for e in read_attempt_ends(project.run).values() if e]


@pytest.mark.long
def test_a_typed_command_is_preempted_comes_back_and_finishes(cluster, tmp_path):
    project = make_project(cluster, tmp_path / "p")
    project.tasuki("submit", "--", "python", "train.py", "1200", "exit=75")
    project.wait((project.folder / "began.1").exists, "begun")
    take_all_nodes(cluster, tmp_path / "high")
    project.wait_until_complete()
    assert ends(project) == [PREEMPTED, DONE], project.logs()
    assert steps(project) == list(range(1200)), "a step was lost or done twice"


@pytest.mark.long
def test_a_command_longer_than_its_limit_goes_from_job_to_job_and_none_ends_in_timeout(
    cluster, tmp_path
):
    project = make_project(cluster, tmp_path / "p", time_limit="10s", grace="2s")
    project.tasuki("submit", "--", "python", "train.py", "600", "exit=0")
    project.wait_until_complete()
    assert ends(project)[0] == LIMIT and ends(project)[-1] == DONE, project.logs()
    assert steps(project) == list(range(600))
    assert set(project.states()) <= {"PENDING", "COMPLETED"}, project.states()
