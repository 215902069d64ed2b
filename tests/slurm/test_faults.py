"""What may go wrong with a cluster: nodes that go away, a controller that does, refusals."""

from __future__ import annotations

import json
import signal

import pytest

from tasuki.testing.slurm import Cluster, Shape
from tasuki.testing.slurm.cluster import CONTROLLER
from tests.slurm.project import SlurmProject, differences, make_slurm_project, run_here
from tests.slurm.test_runs import BRIEF

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]
DONE = ("done", "none")


@pytest.fixture
def small(tmp_path, cluster):
    """A cluster of two nodes that may be broken; the other one only says whether Slurm is here."""
    del cluster
    with Cluster(tmp_path / "c", Shape(nodes=2, gpus=0)) as running:
        yield running


def node_of(project: SlurmProject) -> str:
    return project.cluster.run("squeue", "-h", "-j", project.number, "-o", "%N").strip()


def test_while_the_controller_is_away_status_says_so_and_nothing_is_submitted_twice(
    small, tmp_path
):
    stages = [{"name": "one", "data": "d", "epochs": 250}]
    project = make_slurm_project(small, tmp_path / "p", stages=stages, time_limit="40s")
    project.tasuki("submit")
    project.wait_for_step(1)
    project.tasuki("status")
    small.end(CONTROLLER)
    next(project.folder.glob("runs/.jobs/queue.*.json")).unlink()
    status = json.loads(project.tasuki("status", "--json"))
    assert status["runs"][0]["state"] == "running"
    assert "Slurm does not answer" in status["slurm"]["problem"], status["slurm"]
    assert "Slurm does not answer" in project.tasuki("status")
    again = make_slurm_project(small, tmp_path / "q")
    refused = again.try_tasuki("submit")
    assert refused.returncode == 1 and "Slurm does not answer" in refused.stderr, refused
    project.wait(lambda: project.attempts()[0].ending == "handed-over", "at its limit")
    small.start_controller()
    project.wait(
        lambda: "Slurm does not answer" not in project.tasuki("status", "--json"),
        "heard again",
    )
    again.tasuki("submit")
    again.tasuki("submit")
    assert len(again.queued()) == 1
    project.wait_until_complete()
    again.wait_until_complete()
    assert project.recomputed() == 0 and len(project.jobs) == 1


def test_where_a_requeue_is_refused_a_successor_goes_on(cluster, tmp_path):
    project = make_slurm_project(
        cluster, tmp_path / "p", evaluates=False, time_limit="40s", **BRIEF
    )
    project.tasuki("submit")
    first = project.number
    cluster.run("scontrol", "update", f"jobid={first}", "Requeue=0")
    project.wait_until_complete()
    assert project.number != first
    assert project.states()[0] == "COMPLETED", project.logs()
    assert project.recomputed() == 0


def test_a_run_goes_on_elsewhere_when_its_node_is_set_down(small, tmp_path):
    project = make_slurm_project(small, tmp_path / "p")
    project.tasuki("submit")
    project.wait_for_step(1)
    small.run("scontrol", "update", f"nodename={node_of(project)}", "state=down", "reason=test")
    project.wait_until_complete()
    assert differences(run_here(project, tmp_path / "whole"), project) == []


def test_a_zombie_on_a_node_that_slurm_lost_neither_commits_nor_requeues(small, tmp_path):
    """Slurm takes the node for dead and starts the job elsewhere; the old one goes on beside it."""
    stages = [{"name": "one", "data": "d", "epochs": 250}]
    project = make_slurm_project(small, tmp_path / "p", stages=stages)
    project.tasuki("submit")
    project.wait_for_step(1)
    small.end(node_of(project), number=signal.SIGKILL)
    project.wait_for_step(2)
    project.wait(lambda: project.attempts()[0].ending, "superseded")
    assert project.attempts()[0].ending == "superseded", project.logs()
    project.wait_until_complete(400)
    assert [end for end in project.ends() if end == DONE] == [DONE]
    assert len(project.attempts()) == 2, project.logs()
    assert differences(run_here(project, tmp_path / "whole"), project) == []


@pytest.mark.timeout(1200)
def test_on_the_stock_tick_no_job_ends_in_timeout_and_a_grace_is_survived(tmp_path, cluster):
    del cluster
    shape = Shape(nodes=4, gpus=0)
    with Cluster(tmp_path / "c", shape, is_quick=False) as stock:
        stages = [{"name": "one", "data": "d", "epochs": 200}]
        limited = make_slurm_project(stock, tmp_path / "p", stages=stages, time_limit="1m")
        graceful = make_slurm_project(stock, tmp_path / "q", partition="grace")
        for project in (limited, graceful):
            project.tasuki("submit")
        graceful.wait_for_step(1)
        stock.run("sbatch", "-p", "high", "-N3", "--exclusive", "-o", "/dev/null", "--wrap=true")
        stock.run("sbatch", "-p", "high", "-N4", "--exclusive", "-o", "/dev/null", "--wrap=true")
        for project in (graceful, limited):
            project.wait_until_complete(600)
            assert "TIMEOUT" not in project.states(), project.states()
            assert project.recomputed() == 0
        assert ("handed-over", "limit") in limited.ends()
        assert ("handed-over", "preempted") in graceful.ends()
