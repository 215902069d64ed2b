"""`workers: auto`: the wait is measured and said, workers follow, and nothing else changes."""

from __future__ import annotations

import re
import signal
from pathlib import Path
from typing import Any

import pytest
from tests.harness.faulty import events, wait_until
from tests.harness.project import Project, differences, make_project

CODE = """
class Late(Noisy):
    def __init__(self, n, delay):
        super().__init__(n)
        self.delay = delay

    def __getitem__(self, i):
        time.sleep(self.delay)
        return super().__getitem__(i)


class Waiter(Learner):
    def __init__(self, delay=0.0, **params):
        super().__init__(**params)
        self.delay = delay

    def build_dataset(self, source, split):
        return Late(self.samples, self.delay)
"""


def make(folder: Path, *, steps: int, delay: float = 0.0, cpus: int, workers: Any = "auto"):
    return make_project(
        folder,
        recipe="Waiter",
        code=CODE,
        params={"delay": delay},
        stages=[{"name": "one", "data": "d", "steps": steps}],
        defaults={
            "loader": {"workers": workers},
            "save": {"every": "40 steps"},
            "log_every": "20 steps",
        },
        cluster={"cpus": cpus},
    )


def decisions(project: Project) -> list[dict[str, Any]]:
    return events(project, "loader")


def words(project: Project) -> list[str]:
    """What people read about it, attempt after attempt."""
    return [line for line in project.logs().splitlines() if line.startswith("Data: ")]


@pytest.mark.long
def test_workers_are_raised_kept_by_the_next_attempt_and_change_nothing_that_is_learnt(
    warm, tmp_path
):
    # Steps wait 16 ms: a second is 60 of them, and twice as many with two workers.
    project = make(tmp_path / "p", steps=400, delay=0.002, cpus=8)
    started = warm.start(project.job.path)
    wait_until(lambda: decisions(project), project)
    started.kill(signal.SIGKILL)
    started.wait()
    first = decisions(project)[0]
    assert first["workers"] == 2 and 0.5 < first["wait"] <= 1.0, first
    [line] = words(project)
    assert re.match(r"Data: steps wait \d+\.\d% of their time for samples; no workers → 2 w", line)

    assert warm.start(project.job.path).wait() == 0, project.logs()
    # The second attempt began with two workers: nobody started anew from none.
    assert all(line.count("no workers") == 0 for line in words(project)[1:]), words(project)
    assert [event["workers"] for event in decisions(project)[1:2]] == [2], words(project)
    assert max(event["workers"] for event in decisions(project)) == 2

    # As many threads, no workers, no delays.
    plain = make(tmp_path / "plain", steps=400, cpus=6, workers=0)
    assert warm.start(plain.job.path).wait() == 0, plain.logs()
    assert differences(plain, project) == []


def test_more_workers_than_cpus_are_cut_with_a_warning(warm, tmp_path):
    project = make(tmp_path / "p", steps=12, cpus=2, workers=5)
    assert warm.start(project.job.path).wait() == 0, project.logs()
    warning = "WARNING: `loader.workers: 5` is cut to 1: workers and threads (1) share 2 CPUs"
    assert warning in project.logs()
    plain = make(tmp_path / "plain", steps=12, cpus=1, workers=0)
    assert warm.start(plain.job.path).wait() == 0, plain.logs()
    assert differences(plain, project) == []
