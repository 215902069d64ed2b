"""R17: checkpoints take bounded room, and what kills leave behind is swept by the next start."""

from __future__ import annotations

import pytest

ROOM = "tests.resume.storage.room:watch_room"
pytestmark = [pytest.mark.usefixtures("held_calls"), pytest.mark.timeout(600)]


def watch(bench, *, keep: int, kills: int, seed: int) -> list[str]:
    done = bench.do(ROOM, keep=keep, kills=kills, seed=seed)
    most = f"at most {done['most']:.2f} times a checkpoint, keep {keep}"
    print(f"R17: {kills} kills: {most}; {len(done['problems'])} problems")
    return list(done["problems"])


def test_a_run_that_is_killed_again_and_again_takes_the_room_of_keep_and_two_more(bench):
    assert watch(bench, keep=2, kills=10, seed=3) == []


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("keep", [2, 3, 5])
def test_a_hundred_kills_never_leave_more_than_keep_and_two(bench, keep):
    assert watch(bench, keep=keep, kills=100, seed=keep) == []
