"""Two jobs work on one run: the older attempt leaves it to the newer one, whatever it met.

The ranks only say what ranks say; those of `tests/resume/test_superseded.py` are real.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tasuki.clock import SystemClock
from tasuki.errors import StoreError
from tasuki.jobs.after import settle_job
from tasuki.jobs.job import read_job
from tasuki.jobs.place import Place
from tasuki.runs.attempts import read_attempt_ends, write_holder
from tasuki.runs.claims import claim_folder, list_claims, take_claim
from tasuki.runs.control import last_said
from tasuki.runs.jobs import begin_start
from tests.harness.project import Project, make_project
from tests.unit.jobs.supervised import Said, supervise

OTHER = "other-01"


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return make_project(tmp_path / "p")


def take_run(project: Project) -> int:
    """As another job does, whose supervisor is this process."""
    claim = take_claim(project.run)
    write_holder(project.run, claim, job=OTHER, start=1, at=SystemClock.wall())
    return claim


def check_left_alone(project: Project) -> None:
    assert last_said(project.run) is None
    assert not list(project.run.control.glob("*"))
    assert list_claims(project.run) == [1, 2], "the run was taken again"
    end = read_attempt_ends(project.run)[1]
    assert end is not None and end["ending"] == "superseded"
    assert read_attempt_ends(project.run)[2] is None


@pytest.mark.parametrize(
    ("ending", "cause", "status"),
    [
        ("failed", "none", 1),
        ("mistake", "preempted", 1),
        ("stuck", "none", 1),
        ("handed-over", "preempted", 75),
        ("done", "none", 0),
    ],
)
def test_an_attempt_that_lost_the_run_ends_as_superseded_however_it_ended(
    project, ending, cause, status
):
    def launch(launch):
        take_run(project)
        words = [
            {"kind": "step", "step": 1, "total": 9},
            {"kind": "done", "ending": ending, "cause": cause, "message": "ENOENT"},
        ]
        return Said(launch.fd, words, status)

    assert supervise(read_job(project.job.path), launch) == 75
    check_left_alone(project)


def test_a_supervisor_whose_own_files_were_swept_leaves_the_run_to_the_newer_attempt(project):
    def launch(_):
        take_run(project)
        raise StoreError("holder.json: No such file or directory (ENOENT)")

    assert supervise(read_job(project.job.path), launch) == 75
    check_left_alone(project)


def a_dead_process() -> int:
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def test_a_killed_supervisor_that_had_lost_the_run_is_buried_as_superseded(project, monkeypatch):
    job = read_job(project.job.path)
    start = begin_start(job.folder)
    claim = take_claim(project.run)
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", a_dead_process)
        write_holder(project.run, claim, job=job.folder.name, start=start, at=SystemClock.wall())
    take_run(project)
    assert settle_job(job, Place(), clock=SystemClock(), environment={}) == 75
    check_left_alone(project)


def test_a_job_that_never_begins_does_not_hold_a_run_that_another_one_works_on(project):
    job = read_job(project.job.path)
    take_run(project)
    for _ in range(3):
        begin_start(job.folder)
        code = settle_job(job, Place(), clock=SystemClock(), environment={})
    assert code == 1
    assert last_said(project.run) is None
    assert not (claim_folder(project.run, 1) / "end.json").exists()
