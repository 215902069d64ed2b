"""Attempt after attempt of the real supervisor, with ranks that only say what ranks say (R12)."""

from __future__ import annotations

import json
import os
from dataclasses import replace

import pytest

from tasuki.clock import SystemClock
from tasuki.jobs.job import read_job
from tasuki.jobs.loop import Supervisor
from tasuki.runs.attempts import read_attempt_ends
from tasuki.runs.claims import list_claims
from tasuki.runs.control import last_said
from tests.harness.project import make_project

PREEMPTED = [
    {"kind": "step", "step": 1, "total": 9},
    {"kind": "saved", "checkpoint": "c", "is_start": False},
    {"kind": "done", "ending": "handed-over", "cause": "preempted"},
]
CRASHED = [
    {"kind": "step", "step": 1, "total": 9},
    {"kind": "done", "ending": "failed", "cause": "none", "message": "boom"},
]


class Said:
    """A rank that has said its words and is gone."""

    pid = 1 << 30  # nobody

    def __init__(self, fd: int, words: list[dict], status: int) -> None:
        self._status = status
        os.write(fd, b"".join(json.dumps(word).encode() + b"\n" for word in words))

    def poll(self) -> int:
        return self._status


@pytest.fixture
def job(tmp_path):
    project = make_project(tmp_path / "p")
    return project, read_job(project.job.path)


def supervise(job, words: list[dict], status: int) -> int:
    supervisor = Supervisor(
        job,
        clock=SystemClock(),
        launch=lambda launch: Said(launch.fd, words, status),
        environment={},
        leash=None,
    )
    return supervisor.run().exit_code


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("times", [12, pytest.param(300, marks=pytest.mark.long)])
def test_preemptions_with_progress_never_stop_a_run(job, times):
    project, order = job
    for _ in range(times):
        assert supervise(order, PREEMPTED, 75) == 75
    assert last_said(project.run) is None
    ends = read_attempt_ends(project.run).values()
    assert [end["cause"] for end in ends if end] == ["preempted"] * times
    print(f"R12: {times} of {times} preemptions of the real supervisor come back")


def test_a_crash_loop_stops_at_exactly_the_third_attempt(job):
    project, order = job
    assert supervise(order, CRASHED, 1) == 1
    assert list_claims(project.run) == [1, 2, 3]
    said = last_said(project.run)
    assert said is not None and said.word == "hold" and "boom" in said.reason
    print("R12: stopped at 3 of 3")


def test_a_job_too_short_for_the_evaluation_that_is_left_does_not_begin_it(job):
    project, order = job
    spec = json.loads(project.run.spec.read_text())
    spec["stages"] = [{**stage, "evaluates": True, "reserve_s": 60.0} for stage in spec["stages"]]
    project.run.spec.write_text(json.dumps(spec))
    for stage in project.stages:
        folder = project.run.stage(stage)
        folder.path.mkdir(parents=True)
        folder.metrics.write_text("{}")
    supervisor = Supervisor(
        replace(order, limit_s=5.0),
        clock=SystemClock(),
        launch=lambda _: pytest.fail("a rank was started"),
        environment={},
        leash=None,
    )
    assert supervisor.run().exit_code == 75
    [end] = read_attempt_ends(project.run).values()
    assert (end["ending"], end["cause"]) == ("handed-over", "limit")
