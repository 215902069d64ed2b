"""A job has ended when nobody of its session lives any more."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress

import psutil
import pytest

from tasuki.jobs.local import _is_alive
from tests.commands.projects import until


@pytest.fixture
def session():
    """A supervisor that leaves a rank behind, in a session of their own."""
    process = subprocess.Popen(
        ["sh", "-c", "sleep 1000 & sleep 1000"], start_new_session=True, stdout=subprocess.DEVNULL
    )
    yield process
    kill(process.pid)
    process.wait()


def test_a_rank_that_outlives_its_supervisor_is_seen_and_a_dead_one_is_not(session):
    until(lambda: len(psutil.Process(session.pid).children()) == 2)
    session.kill()
    session.wait()
    assert _is_alive(session.pid)  # its ranks
    kill(session.pid)
    until(lambda: not _is_alive(session.pid))


def test_one_that_is_dead_and_not_buried_is_nobody(session):
    kill(session.pid)
    until(lambda: not _is_alive(session.pid))
    assert session.returncode is None  # it is a zombie until somebody asks


def kill(group: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)
