"""Projects and commands, as the tests of the command line have them; forks of a clean process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.commands.conftest import here, project, real_project, warm_python
from tests.harness.errands import Errands, errands

__all__ = ["here", "project", "real_project", "warm_python"]


@pytest.fixture(scope="session")
def forks() -> Iterator[Errands]:
    """One thread, torch imported: what forks in its turn inherits no lock of another test."""
    with errands("tests.train.tuned_models", "tests.train.test_sums_over_ranks") as server:
        yield server
