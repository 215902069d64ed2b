"""R4: after a power cut all that was acknowledged is there, and nothing half-written is visible."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.timeout(600)  # a busy machine is no failure
CUT = "tests.resume.storage.images:cut_power"


@pytest.fixture(scope="session")
def images(bench, held_calls):
    """For tests that mount copies of a disk."""
    if (reason := bench.do("tests.resume.storage.images:why_not")) is not None:
        pytest.skip(reason)


def test_a_disk_that_keeps_only_what_was_synced_keeps_all_that_was_acknowledged(bench, held_calls):
    done = bench.do("tests.resume.storage.pessimist:cut_everywhere")
    problems = done["problems"]
    words = f"{done['cuts']} states of a pessimist's disk at {done['calls']} calls"
    print(f"R4: {words}: {len(problems)} with something lost or partial")
    assert problems == []
    assert done["cuts"] >= 150


def test_four_power_cuts_lose_nothing_that_was_acknowledged(bench, images):
    done = bench.do(CUT, cuts=4, seed=4)
    print(f"R4 (quick): {done['cuts']} power cuts, {len(done['problems'])} problems")
    assert done["problems"] == []


@pytest.mark.long
@pytest.mark.timeout(900)
def test_two_hundred_power_cuts_lose_nothing_that_was_acknowledged(bench, images):
    done = bench.do(CUT, cuts=200, seed=0)
    words = f"{done['cuts']} power cuts ({done['torn']} torn copies taken again)"
    print(f"R4: {words}: {len(done['problems'])} with something lost or partial")
    assert done["problems"] == []
    assert done["cuts"] >= 200
