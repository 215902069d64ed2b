"""On a real Slurm `tasuki why` names what Slurm did, by its own numbers."""

from __future__ import annotations

import json
import re

import pytest

from tests.slurm.project import SlurmProject, make_slurm_project
from tests.slurm.test_runs import take_all_nodes


def attempts(project: SlurmProject) -> list[dict]:
    told = json.loads(project.tasuki("why", "exp", "--json"))
    parts = told["ledger"]["parts"]
    assert sum(parts.values()) == pytest.approx(told["ledger"]["wall_s"], abs=1e-6)
    return told["attempts"]


@pytest.mark.long
def test_a_preemption_is_named_with_its_partition_what_was_saved_and_when_it_came_back(
    cluster, tmp_path
):
    project = make_slurm_project(cluster, tmp_path / "p", recipe="Brief", partition="low")
    project.tasuki("submit")
    project.wait_for_step(1)
    number = project.number
    take_all_nodes(cluster, tmp_path / "high")
    project.wait_until_complete()
    first, last = attempts(project)
    words = (
        r"preempted in partition `low` after [\dms.]+; saved step \d+ in [\d.]+m?s; 0 steps lost; "
    )
    assert re.match(words + r"back after [\d.]+", first["sentence"]), first
    assert (first["scheduler_job"], first["partition"]) == (number, "low")
    assert first["saved_step"] == first["to_step"] == last["from_step"]
    assert last["sentence"].startswith("complete after") and last["scheduler_job"] == number


@pytest.mark.long
def test_a_scancel_is_named_as_a_cancel(cluster, tmp_path):
    project = make_slurm_project(
        cluster, tmp_path / "p", recipe="Brief", params={"pause": 0.1}, partition="low"
    )
    project.tasuki("submit")
    project.wait_for_step(1)
    cluster.run("scancel", project.number)
    project.wait(lambda: not project.queued(), "out of the queue", 60)
    (only,) = attempts(project)
    assert only["sentence"].startswith("cancelled after"), only
    assert "hint:" in project.tasuki("why", "exp")
