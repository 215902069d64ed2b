"""Two jobs take one run at once, with real ranks: the newer attempt sweeps what the older one was
writing, and is not held for that."""

from __future__ import annotations

import json
import os
import signal
import time

import psutil
import pytest
from tests.harness.faulty import leftovers
from tests.harness.project import make_project

from tasuki.runs.attempts import read_attempt_ends
from tasuki.runs.control import last_said


def stopped_rank(supervisor: int, logs) -> int:
    """The rank that has come to its failpoint."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        for rank in psutil.Process(supervisor).children():
            if rank.status() == psutil.STATUS_STOPPED:
                return rank.pid
        time.sleep(0.01)
    raise AssertionError(logs())


@pytest.mark.parametrize("file", ["parent.json", "training_state.json"])
def test_the_older_of_two_attempts_at_once_leaves_and_the_newer_one_finishes(warm, tmp_path, file):
    project = make_project(tmp_path / "p")
    orders = [
        {"at": f"rename {file}", "do": "stop", "claim": 1},
        {"at": "step.begin", "do": "stop", "claim": 2},
    ]
    armed = {"TASUKI_FAILPOINTS": json.dumps(orders)}
    older = warm.start(project.job.path, **armed)
    loser = stopped_rank(older.pid, project.logs)
    assert [name for name in leftovers(project.run) if file in name]
    newer = warm.start(project.job.path, **armed)
    winner = stopped_rank(newer.pid, project.logs)
    assert not [name for name in leftovers(project.run) if file in name]

    os.kill(loser, signal.SIGCONT)
    assert older.wait() == 75, project.logs()
    assert last_said(project.run) is None, project.logs()
    ends = read_attempt_ends(project.run)
    assert ends[1] is not None and ends[1]["ending"] == "superseded"
    assert ends[2] is None

    os.kill(winner, signal.SIGCONT)
    assert newer.wait() == 0, project.logs()
    assert project.run.is_complete() and leftovers(project.run) == []
