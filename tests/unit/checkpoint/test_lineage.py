"""The latest checkpoint is found by lineage, and damage is passed over aloud."""

from __future__ import annotations

import random
import shutil

import pytest
from tests.unit.checkpoint.commits import commit, flip, position

from tasuki.checkpoint.lineage import find_latest, lineage
from tasuki.checkpoint.retention import prune
from tasuki.errors import CheckpointError, ClaimLost, DamagedCheckpoint, StoreError
from tasuki.runs.claims import claim_folder, record_parent, take_claim


class Reports(dict[str, DamagedCheckpoint]):
    def __call__(self, name, error):
        self[name] = error


def begin(run, parent):
    claim = take_claim(run)
    record_parent(run, claim, parent=parent, facts={})
    return claim


def zombie_commit(run, claim, step):
    """A commit by a claim that was overtaken between its last look and its rename."""
    newer = sorted(path for path in run.claims.iterdir() if int(path.name) > claim)
    aside = run.path / "aside"
    aside.mkdir()
    for path in newer:
        path.rename(aside / path.name)
    made = commit(run, claim, step)
    for path in newer:
        (aside / path.name).rename(path)
    aside.rmdir()
    return made.name


def damage(run, name):
    path = run.checkpoints / name / "part-00000.safetensors"
    flip(path, path.stat().st_size - 1)


def latest(run, *, stage=None):
    found = find_latest(run, Reports(), stage=stage)
    return found.name if found else None


def test_a_run_that_never_committed_has_no_latest_and_one_whose_parent_is_gone_is_refused(run):
    assert latest(run) is None
    begin(run, None)
    assert lineage(run) == [] and latest(run) is None
    parent = commit(run, begin(run, None), 1).name
    begin(run, parent)
    shutil.rmtree(run.checkpoints)
    with pytest.raises(CheckpointError, match="which is gone"):
        latest(run)


def test_the_lineage_goes_from_the_highest_claim_through_the_parents(run):
    one = begin(run, None)
    a, b, c = (commit(run, one, step).name for step in (0, 10, 20))
    two = begin(run, b)
    d = commit(run, two, 15).name
    assert lineage(run) == [d, b, a]
    assert c not in lineage(run)
    three = begin(run, d)
    assert lineage(run) == [d, b, a]
    e = commit(run, three, 16).name
    assert lineage(run) == [e, d, b, a]
    take_claim(run)  # without a recorded parent it follows from the one before
    assert lineage(run) == [e, d, b, a] and latest(run) == e


def test_the_start_of_a_stage_is_newer_than_the_end_of_the_stage_before(run):
    one = begin(run, None)
    start_1 = commit(run, one, 0).name
    end_1 = commit(run, one, 1200).name
    start_2 = commit(run, one, position(1200, stage="mid", number=2, stage_step=0)).name
    assert (start_1, start_2) == ("step-000000000.c1.s1", "step-000001200.c1.s2")
    assert lineage(run) == [start_2, end_1, start_1]
    begin(run, end_1)
    assert lineage(run) == [end_1, start_1]


def test_a_stale_commit_of_a_zombie_is_never_the_latest(run):
    one = begin(run, None)
    good = commit(run, one, 10).name
    two = begin(run, good)
    stale = zombie_commit(run, one, 999_999)
    assert (run.checkpoints / stale).is_dir()
    assert latest(run) == good
    new = commit(run, two, 11).name
    assert latest(run) == new
    damage(run, new)
    assert latest(run) == good
    with pytest.raises(ClaimLost):
        commit(run, one, 1_000_000)


def test_damage_is_passed_over_and_reported_and_a_run_of_damage_alone_never_starts_fresh(run):
    one = begin(run, None)
    names = [commit(run, one, step).name for step in (1, 2, 3, 4)]
    damage(run, names[3])
    (run.checkpoints / names[2] / "manifest.json").unlink()
    reports = Reports()
    found = find_latest(run, reports)
    assert found is not None and found.name == names[1]
    assert list(reports) == [names[3], names[2]]
    for name in names[:2]:
        flip(run.checkpoints / name / "manifest.json", 20)
    with pytest.raises(CheckpointError, match="nothing verifies any more") as caught:
        find_latest(run, reports, stage="small")  # whose stage nobody can read
    assert len(reports) == 4 and caught.value.hint


def test_the_latest_of_one_stage_is_found(run):
    one = begin(run, None)
    small = commit(run, one, 5).name
    mid_start = commit(run, one, position(5, stage="mid", number=2, stage_step=0)).name
    mid = commit(run, one, position(6, stage="mid", number=2, stage_step=1)).name
    assert latest(run, stage="small") == small
    assert latest(run, stage="mid") == mid
    assert latest(run, stage="large") is None
    damage(run, mid)
    assert latest(run, stage="mid") == mid_start
    damage(run, mid_start)
    with pytest.raises(CheckpointError, match="nothing verifies"):
        latest(run, stage="mid")
    assert latest(run, stage="small") == small


@pytest.mark.parametrize("parent", ["nonsense", "step-000000001.c1", "step-000000001.c2", "../x"])
def test_an_impossible_parent_is_an_error_and_not_a_loop(run, parent):
    begin(run, parent)
    with pytest.raises(StoreError, match="impossible parent"):
        lineage(run)


def names_on_disk(run):
    return {path.name for path in run.checkpoints.iterdir()}


def test_prune_keeps_the_newest_and_at_least_two(run):
    one = begin(run, None)
    names = [commit(run, one, step).name for step in range(6)]
    assert prune(run, claim=one, keep=4) == names[:2]
    assert prune(run, claim=one, keep=0) == names[2:4]
    assert prune(run, claim=one, keep=1) == []
    assert names_on_disk(run) == set(names[4:])
    assert latest(run) == names[5]


def test_the_parent_of_the_highest_claim_is_never_pruned(run):
    one = begin(run, None)
    names = [commit(run, one, step).name for step in range(3)]
    two = begin(run, names[1])
    own = [commit(run, two, step).name for step in range(10, 16)]
    with pytest.raises(ClaimLost):
        prune(run, claim=one, keep=2)
    assert names_on_disk(run) == {*names, *own}
    prune(run, claim=two, keep=2)
    assert names_on_disk(run) == {names[1], *own[-2:]}


def test_stale_commits_and_leftover_trash_are_removed_by_the_holder(run):
    one = begin(run, None)
    good = commit(run, one, 10).name
    two = begin(run, good)
    stale = zombie_commit(run, one, 999)
    own = commit(run, two, 11).name
    trash = run.checkpoints / ".trash-step-000000001.c1-00000000"
    trash.mkdir()
    (trash / "part-00000.json").touch()
    assert prune(run, claim=two, keep=2) == [stale]
    assert names_on_disk(run) == {good, own}


def test_damaged_checkpoints_do_not_count_as_kept(run):
    one = begin(run, None)
    names = [commit(run, one, step).name for step in range(5)]
    (run.checkpoints / names[4] / "part-00000.json").unlink()
    prune(run, claim=one, keep=2)
    assert names_on_disk(run) == {names[2], names[3], names[4]}
    assert latest(run) == names[3]


@pytest.mark.parametrize("seed", range(3))
def test_over_many_attempts_nothing_needed_is_lost_and_the_disk_stays_small(run, seed):
    picks = random.Random(seed)
    step, keep = 0, picks.randint(2, 4)
    expected: str | None = None
    for _ in range(6):
        found = find_latest(run, Reports())
        assert (found.name if found else None) == expected
        claim = take_claim(run)
        if picks.random() < 0.8:
            record_parent(run, claim, parent=expected, facts={})
        is_recorded = (claim_folder(run, claim) / "parent.json").exists()
        if claim > 1 and is_recorded and picks.random() < 0.4:
            zombie_commit(run, claim - 1, 10_000 + step)
        for _ in range(picks.randint(0, 4)):
            step += 1
            expected = commit(run, claim, step).name
            assert len(names_on_disk(run)) <= keep + 3  # one may be a zombie's
            prune(run, claim=claim, keep=keep)
            assert len(names_on_disk(run)) <= keep + 1
            assert find_latest(run, Reports()).name == expected
