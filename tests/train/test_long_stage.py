"""A stage of many small steps costs no more memory at its end than at its beginning."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.harness.project import make_project

_MEASURED = '''
class Measured(Learner):
    """Notes how much memory its process has, now and then."""

    def __init__(self, places, file):
        super().__init__(samples=4096)
        self.places, self.file = set(places), file

    def loss(self, model, batch):
        found = super().loss(model, batch)
        if self.calls in self.places:
            pages = int(open("/proc/self/statm").read().split()[1])
            with open(self.file, "a") as file:
                print(pages * os.sysconf("SC_PAGE_SIZE"), file=file)
        return found
'''


STEPS, EARLY = 100_000, 10_000
"""Measured at its end, and when buffers are full."""


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_memory_does_not_grow_with_the_number_of_steps(warm, tmp_path: Path) -> None:
    """With log lines, saves and the note of used samples."""
    file = tmp_path / "rss"
    project = make_project(
        tmp_path / "p",
        recipe="Measured",
        params={"places": [EARLY, STEPS], "file": str(file)},
        stages=[{"name": "one", "data": "d", "steps": STEPS}],
        defaults={"log_every": "10 steps", "save": {"every": "1000 steps"}},
        code=_MEASURED,
    )
    assert warm.start(project.job.path).wait() == 0, project.logs()
    early, late = (int(line) for line in file.read_text().split())
    print(json.dumps({"steps": STEPS - EARLY, "grown_bytes": late - early}))
    assert late - early < 2e6
