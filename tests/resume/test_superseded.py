"""Two jobs take one run at once, with real ranks: the newer attempt sweeps what the older one was
writing and is not held for that, and the older one can commit nothing any more."""

from __future__ import annotations

import os
import signal

from tests.harness.faulty import armed, finish, leftovers, stopped_ranks, wait_until
from tests.harness.project import Project, differences, make_project

from tasuki.runs.atomic import read_json
from tasuki.runs.attempts import read_attempt_ends
from tasuki.runs.control import last_said


def stopped_rank(supervisor: int, project: Project) -> int:
    wait_until(lambda: stopped_ranks(supervisor), project)
    return stopped_ranks(supervisor)[0]


def test_the_older_of_two_attempts_at_once_leaves_and_the_newer_one_finishes(warm, tmp_path):
    project = make_project(tmp_path / "p")
    orders = armed(
        {"at": "rename parent.json", "do": "stop", "claim": 1},
        {"at": "step.begin", "do": "stop", "claim": 2},
    )
    older = warm.start(project.job.path, **orders)
    loser = stopped_rank(older.pid, project)
    assert [name for name in leftovers(project.run) if "parent.json" in name]
    newer = warm.start(project.job.path, **orders)
    winner = stopped_rank(newer.pid, project)
    assert not [name for name in leftovers(project.run) if "parent.json" in name]

    os.kill(loser, signal.SIGCONT)
    assert older.wait() == 75, project.logs()
    assert last_said(project.run) is None, project.logs()
    ends = read_attempt_ends(project.run)
    assert ends[1] is not None and ends[1]["ending"] == "superseded"
    assert ends[2] is None

    os.kill(winner, signal.SIGCONT)
    assert newer.wait() == 0, project.logs()
    assert project.run.is_complete() and leftovers(project.run) == []


def test_a_zombie_whose_run_was_taken_in_the_middle_of_its_training_commits_nothing(
    warm, tmp_path, whole
):
    project = make_project(tmp_path / "p")
    order = armed({"at": "step.begin", "do": "stop", "count": 10, "claim": 1})
    zombie = warm.start(project.job.path, **order)
    rank = stopped_rank(zombie.pid, project)
    os.kill(zombie.pid, signal.SIGSTOP)
    finish(warm, project, starts=1)
    before = sorted(p.name for p in project.run.checkpoints.iterdir())
    os.kill(rank, signal.SIGCONT)
    os.kill(zombie.pid, signal.SIGCONT)
    zombie.wait()
    assert sorted(p.name for p in project.run.checkpoints.iterdir()) == before
    assert read_json(project.run.marker)["attempt"] == 2
    assert differences(whole(make_project), project) == []
