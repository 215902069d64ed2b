"""R4: after a power cut all that was acknowledged is there, and nothing half-written is visible."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.timeout(600)  # a busy machine is no failure


@pytest.mark.parametrize(
    ("num_saves", "least"), [(2, 60), pytest.param(3, 150, marks=pytest.mark.long)]
)
def test_a_disk_that_keeps_only_what_was_synced_keeps_all_that_was_acknowledged(
    bench, held_calls, num_saves, least
):
    """A pessimist's disk, cut before every call of a run of two attempts."""
    done = bench.do("tests.resume.storage.pessimist:cut_everywhere", num_saves=num_saves)
    problems = done["problems"]
    words = f"{done['cuts']} states of a pessimist's disk at {done['calls']} calls"
    print(f"R4: {words}: {len(problems)} with something lost or partial")
    assert problems == []
    assert done["cuts"] >= least
