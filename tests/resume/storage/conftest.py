from __future__ import annotations

import pytest
from tests.harness.errands import errands
from tests.harness.syscalls import why_not


@pytest.fixture(scope="session")
def bench():
    """A process with the storage code imported, in which campaigns of faults are carried out."""
    with errands("tests.resume.storage.driver") as client:
        yield client


@pytest.fixture(scope="session")
def held_calls():
    """For tests that hold system calls."""
    if (reason := why_not()) is not None:
        pytest.skip(reason)
