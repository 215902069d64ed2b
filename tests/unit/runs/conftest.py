from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tasuki.runs.jobs import JobFolder, job_folder
from tasuki.runs.runs import RunFolder
from tasuki.testing import FakeClock


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path / "exp1")


@pytest.fixture
def job(tmp_path: Path) -> JobFolder:
    return job_folder(tmp_path, "plan-01")


@pytest.fixture
def no_umask() -> Iterator[None]:
    """The most careless umask there is."""
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()
