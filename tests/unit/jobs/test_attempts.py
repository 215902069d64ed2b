"""Attempt after attempt of the real supervisor, with ranks that only say what ranks say (R12)."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tasuki.jobs.job import read_job
from tasuki.runs.attempts import read_attempt_ends
from tasuki.runs.claims import list_claims
from tasuki.runs.control import last_said
from tests.harness.project import make_project
from tests.unit.jobs.supervised import CRASHED, PREEMPTED, saying, supervise


@pytest.fixture
def job(tmp_path):
    project = make_project(tmp_path / "p")
    return project, read_job(project.job.path)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("times", [5, pytest.param(300, marks=pytest.mark.long)])
def test_preemptions_with_progress_never_stop_a_run(job, times):
    project, order = job
    for _ in range(times):
        assert supervise(order, saying(PREEMPTED, 75)) == 75
    assert last_said(project.run) is None
    ends = read_attempt_ends(project.run).values()
    assert [end["cause"] for end in ends if end] == ["preempted"] * times


def test_a_crash_loop_stops_at_exactly_the_third_attempt(job):
    project, order = job
    assert supervise(order, saying(CRASHED, 1)) == 1
    assert list_claims(project.run) == [1, 2, 3]
    said = last_said(project.run)
    assert said is not None and said.word == "hold" and "boom" in said.reason


def test_a_job_too_short_for_the_evaluation_that_is_left_does_not_begin_it(job):
    project, order = job
    spec = json.loads(project.run.spec.read_text())
    spec["stages"] = [{**stage, "evaluates": True, "reserve_s": 60.0} for stage in spec["stages"]]
    project.run.spec.write_text(json.dumps(spec))
    for stage in project.stages:
        folder = project.run.stage(stage)
        folder.path.mkdir(parents=True)
        folder.metrics.write_text("{}")
    too_short = replace(order, limit_s=5.0)
    assert supervise(too_short, lambda _: pytest.fail("a rank was started")) == 75
    [end] = read_attempt_ends(project.run).values()
    assert (end["ending"], end["cause"]) == ("handed-over", "limit")
