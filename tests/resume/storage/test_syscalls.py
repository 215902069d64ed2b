"""R3: whatever a system call on the run folder does, nothing committed is lost or half there."""

from __future__ import annotations

import pytest
from tests.harness.syscalls import KINDS

POINTS = "tests.resume.storage.points:check_points"
_ALONE = [["prune"], ["resume"], ["fallback"]]
pytestmark = [pytest.mark.usefixtures("held_calls"), pytest.mark.timeout(600)]


def test_a_fault_at_any_writing_call_of_save_prune_resume_and_completion_loses_nothing(bench):
    done = bench.do(POINTS, phases=["save", "state", "prune", "resume", "finish"], quick=True)
    print(f"R3 (quick): {done['points']} fault points, {len(done['violations'])} violations")
    assert done["violations"] == []
    assert done["points"] >= 60


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "phases",
    [["save", "first", "ranks"], ["held", "frozen"], ["word", "state", "finish"], *_ALONE],
    ids="+".join,
)
def test_every_fault_at_every_call_keeps_what_was_committed_and_says_what_happened(bench, phases):
    done = bench.do(POINTS, phases=phases, quick=False)
    words = f"{done['points']} fault points at {done['calls']} calls"
    print(f"R3 ({'+'.join(phases)}): {words}, {len(done['violations'])} violations")
    assert done["violations"] == []
    assert done["points"] >= 300  # six sets: more than 1,500 in all
    assert set(done["kinds"]) <= set(KINDS)
