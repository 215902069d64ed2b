"""R6: of four writers on one run, only what the claims allow is ever chosen, pruned or marked."""

from __future__ import annotations

import pytest

RACE = "tests.resume.storage.races:race_all"
pytestmark = [pytest.mark.usefixtures("held_calls"), pytest.mark.timeout(600)]


def race(bench, *, races: int, seed: int) -> dict:
    done = bench.do(RACE, races=races, seed=seed)
    facts = f"{done['zombies']} zombies, {done['commits']} commits, {done['stale']} of them stale"
    print(f"R6: {races} races of 4 writers ({facts}): {len(done['violations'])} violations")
    return dict(done)


def test_zombies_among_four_writers_neither_win_nor_prune_nor_mark(bench):
    assert race(bench, races=6, seed=1002)["violations"] == []


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_five_hundred_races_choose_no_stale_commit_prune_no_parent_and_mark_once(bench):
    done = race(bench, races=500, seed=2000)
    assert done["violations"] == []
    assert done["stale"] > 0  # or the zombies would prove nothing
    assert done["zombies"] >= 500
