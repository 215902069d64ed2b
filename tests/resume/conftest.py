"""A person in a project with warm workers, a real cluster, and runs that nobody disturbs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.commands.conftest import here, project, warm_python  # noqa: F401
from tests.harness.faulty import finish
from tests.harness.project import Project
from tests.slurm.conftest import cluster  # noqa: F401


@pytest.fixture(scope="session")
def whole(warm, tmp_path_factory) -> Callable[..., Project]:
    """`whole(make, …)`: the run that `make(folder, …)` writes, trained to its end without any
    disturbance. Made once for equal arguments, and only read."""
    known: dict[str, Project] = {}

    def train(make: Callable[..., Project], /, *arguments: Any, **more: Any) -> Project:
        key = f"{make.__module__}.{make.__name__} {arguments} {more}"
        if key not in known:
            known[key] = make(tmp_path_factory.mktemp("whole") / "p", *arguments, **more)
            finish(warm, known[key], starts=1, TASUKI_TEST_HURRY="1")
        return known[key]

    return train
