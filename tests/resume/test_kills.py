"""An interrupted run equals an uninterrupted one, bit for bit (promises 1, 2, 4)."""

from __future__ import annotations

import random
import signal
import time

import pytest
from tests.harness.project import differences, make_project

STAGES = [
    {"name": "one", "data": "d", "epochs": 5},
    {"name": "two", "data": "d", "epochs": 3, "lr": 0.003},
]


def finish(warm, project, *, starts: int = 3) -> None:
    for _ in range(starts):
        warm.start(project.job.path).wait()
        if project.run.is_complete():
            return
    raise AssertionError(project.logs())


@pytest.fixture(scope="module")
def undisturbed(warm, tmp_path_factory):
    project = make_project(
        tmp_path_factory.mktemp("ref") / "p", stages=STAGES, params={"pause": 0.01}
    )
    finish(warm, project)
    return project


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_killed_at_random_moments_and_run_again_it_ends_bit_for_bit_the_same(
    warm, tmp_path, undisturbed, number, workers
):
    chance = random.Random(f"{number}{workers}")
    project = make_project(
        tmp_path / "p",
        stages=STAGES,
        params={"pause": 0.01},
        defaults={"loader": {"workers": workers}},
        cluster={"cpus": 1 + workers},  # workers never exceed the CPUs
    )
    kills = 0
    while not project.run.is_complete():
        started = warm.start(project.job.path)
        # Longer and longer, so that a busy machine gets through too.
        time.sleep(chance.uniform(0.02, 0.35 * 1.1**kills))
        started.kill(number)
        status = started.wait()
        kills += status != 0
        assert kills < 50, project.logs()
    assert kills >= 2
    assert "is cut to" not in project.logs()
    assert differences(undisturbed, project) == []
