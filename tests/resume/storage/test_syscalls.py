"""R3: whatever a system call on the run folder does, nothing committed is lost or half there."""

from __future__ import annotations

import os

import pytest
from tests.harness import strace, syscalls
from tests.harness.syscalls import KINDS

POINTS = "tests.resume.storage.points:check_points"
_ALONE = [["prune"], ["resume"], ["fallback"]]
pytestmark = [pytest.mark.usefixtures("held_calls"), pytest.mark.timeout(600)]


def test_a_fault_at_any_writing_call_of_save_prune_resume_and_completion_loses_nothing(bench):
    done = bench.do(POINTS, phases=["save", "resume", "finish"], quick=True)
    print(f"R3 (quick): {done['points']} fault points, {len(done['violations'])} violations")
    assert done["violations"] == []
    assert done["points"] >= 60


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "phases",
    [["save", "first", "ranks"], ["held", "frozen", "finish"], *_ALONE],
    ids="+".join,
)
def test_every_fault_at_every_call_keeps_what_was_committed_and_says_what_happened(bench, phases):
    done = bench.do(POINTS, phases=phases, quick=False)
    words = f"{done['points']} fault points at {done['calls']} calls"
    print(f"R3 ({'+'.join(phases)}): {words}, {len(done['violations'])} violations")
    assert done["violations"] == []
    assert done["points"] >= 300  # five sets: 1,500 in all
    assert set(done["kinds"]) <= set(KINDS)


# -- the harness itself: what it does not see, it does not test -----------------------------------


@pytest.mark.skipif(strace.why_not() is not None, reason=strace.why_not() or "")
@pytest.mark.long
def test_every_call_on_the_run_folder_that_strace_sees_is_held(bench):
    for phase, (held, seen) in bench.do("tests.resume.storage.witness:compare").items():
        assert held == seen, phase
        assert held, phase


def test_a_kind_of_call_that_nobody_has_thought_of_is_an_error(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"1234")
    child = syscalls.fork_watched(lambda _: os.setxattr(path, "user.a", b"b"), tmp_path)
    with pytest.raises(syscalls.Uncovered, match="system call 188"):
        child.run()
