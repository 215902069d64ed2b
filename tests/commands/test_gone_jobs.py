"""What `status` says of a job that is gone from the queue: the last line of its own log."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path

import pytest

from tasuki.commands.queued import Known
from tasuki.commands.status import describe_run
from tasuki.runs.atomic import write_json
from tasuki.runs.jobs import JobFolder, job_folder
from tasuki.testing import FakeClock
from tests.harness.written import WrittenRun


@pytest.fixture
def written(tmp_path, monkeypatch) -> WrittenRun:
    monkeypatch.chdir(tmp_path)
    return WrittenRun(tmp_path / "runs", FakeClock())


@pytest.fixture
def job(written) -> JobFolder:
    """Of number 7, submitted long ago."""
    job = job_folder(written.run.path.parent, "j")
    job.path.mkdir(parents=True)
    write_json(job.submitted, {"format": 1, "number": "7"})
    os.utime(job.submitted, (1.0, 1.0))
    return job


def reason_of(written: WrittenRun, job: JobFolder) -> str:
    now = written.clock.wall()
    known = Known(by_run={}, last={"exp": (job, "7")}, at=now)
    return str(describe_run(written.run, now=now, known=known)["reason"])


def log_of(job: JobFolder) -> Path:
    return job.slurm_log("7")


def test_of_a_long_log_the_end_alone_is_read(written, job):
    with log_of(job).open("wb") as file:
        file.seek(64 << 20)
        file.write("\nslurmstepd: error: über\n\n".encode())
    tracemalloc.start()
    try:
        reason = reason_of(written, job)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert "without a word: slurmstepd: error: über (see " in reason
    assert peak < 4 << 20


@pytest.mark.timeout(20)
def test_a_pipe_where_the_log_was_keeps_nobody_waiting(written, job):
    os.mkfifo(log_of(job))
    assert "is gone from the queue without a word (see " in reason_of(written, job)
