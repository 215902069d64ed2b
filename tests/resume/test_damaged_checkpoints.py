"""What an attempt makes of checkpoints and results that were damaged or are gone: it falls back
aloud, or the run is held; it never starts over and never uses a damaged weight.

Which damage is found is tested in `unit/checkpoint/test_verify.py`.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.harness.faulty import armed, events, finish, make_faulty
from tests.harness.project import Project, differences, make_project
from tests.unit.checkpoint.commits import commit, flip

from tasuki.checkpoint.lineage import lineage
from tasuki.checkpoint.retention import prune, quarantine
from tasuki.runs.claims import take_claim
from tasuki.runs.control import Word, last_said
from tasuki.runs.runs import RunFolder

PART = "part-00000.safetensors"
TWO = [{"name": "a", "data": "d", "epochs": 1}, {"name": "b", "data": "d", "epochs": 4}]
BEST = [
    {
        "name": "one",
        "data": "d",
        "epochs": 4,
        # The largest loss is that of the first steps: later ones never take its place.
        "validate": {"every": "2 steps", "mode": "max"},
    }
]


def interrupt(warm, project: Project, *, at: int) -> None:
    order = {"at": "step.done", "do": "term-group", "count": at, "claim": 1}
    assert warm.start(project.job.path, **armed(order)).wait() == 75, project.logs()


def hold_reason(warm, project: Project) -> str:
    """Start it: why it is held at once."""
    assert warm.start(project.job.path).wait() == 1, project.logs()
    said = last_said(project.run)
    assert said is not None and said.word is Word.HOLD, project.logs()
    assert [event["claim"] for event in events(project, "restored")] == [1]
    return said.reason


def flip_in(path: Path) -> None:
    flip(path, path.stat().st_size // 2)


def test_damaged_checkpoints_are_fallen_past_aloud_and_put_aside_and_the_result_is_the_same(
    warm, tmp_path, whole
):
    save = {"save": {"every": "4 steps"}}
    project = make_project(tmp_path / "p", defaults=save)
    interrupt(warm, project, at=14)
    newest = lineage(project.run)[0]
    flip_in(project.run.checkpoints / newest / PART)
    finish(warm, project, starts=1)
    assert f"{newest} is damaged, falling back" in project.logs()
    assert project.logs().count("is kept aside as quarantine-") == 1
    assert len(events(project, "fell-back")) == 1
    assert differences(whole(make_project, defaults=save), project) == []


def test_a_run_whose_checkpoints_are_all_damaged_or_gone_is_held_and_never_starts_over(
    warm, tmp_path
):
    project = make_project(tmp_path / "p", defaults={"save": {"every": "3 steps"}})
    interrupt(warm, project, at=7)
    for path in project.run.checkpoints.glob(f"*/{PART}"):
        flip_in(path)
    assert "nothing verifies" in hold_reason(warm, project)
    gone = make_project(tmp_path / "gone")
    interrupt(warm, gone, at=7)
    shutil.rmtree(gone.run.checkpoints)
    assert "is gone" in hold_reason(warm, gone)


def test_a_stage_whose_mark_is_lost_is_not_trained_again_behind_a_later_one(warm, tmp_path):
    project = make_project(tmp_path / "p", stages=TWO)
    order = {"at": "step.done", "do": "term-group", "count": 8, "claim": 1}
    while "b" not in {event["stage"] for event in events(project, "committed")}:
        assert warm.start(project.job.path, **armed(order)).wait() == 75, project.logs()
    project.run.stage("a").metrics.unlink()
    assert warm.start(project.job.path).wait() == 1, project.logs()
    said = last_said(project.run)
    assert said is not None and said.word is Word.HOLD and "not marked as done" in said.reason


def test_best_weights_that_are_damaged_or_gone_never_become_the_stage_s_weights(warm, tmp_path):
    project = make_project(tmp_path / "p", stages=BEST)
    interrupt(warm, project, at=9)
    files = sorted(project.run.stage("one").path.glob("best-*.safetensors"))
    assert files
    for path in files:
        flip_in(path)
    copy = shutil.copytree(project.run.path, tmp_path / "copy")
    assert warm.start(project.job.path).wait() == 1, project.logs()
    assert "its sha256 is another" in project.logs()
    assert not project.run.stage("one").metrics.exists()
    shutil.rmtree(project.run.path)
    shutil.copytree(copy, project.run.path)
    for path in files:
        path.unlink()
    assert warm.start(project.job.path).wait() == 1, project.logs()
    assert "are gone" in project.logs()
    assert not project.run.stage("one").metrics.exists()


# -- frozen parameters, which several checkpoints share -------------------------------------------


def adapted(folder: Path, **params) -> Project:
    defaults = {"save": {"every": "5 steps"}}
    return make_faulty(folder, recipe="Adapted", params=params, defaults=defaults)


def damage_frozen(project: Project) -> None:
    (shared,) = (project.run.checkpoints / "frozen").glob("*")
    flip_in(shared)


def test_a_damaged_frozen_file_is_found_before_a_weight_is_used_and_the_run_is_held(warm, tmp_path):
    project = adapted(tmp_path / "p")
    interrupt(warm, project, at=7)
    damage_frozen(project)
    assert "nothing verifies" in hold_reason(warm, project)


@pytest.mark.long
def test_where_a_later_checkpoint_does_not_need_the_damaged_frozen_file_the_run_goes_on(
    warm, tmp_path, whole
):
    """What was unfrozen stands in the checkpoint itself."""
    project = adapted(tmp_path / "p", unfreeze_at=9)
    interrupt(warm, project, at=12)
    damage_frozen(project)
    finish(warm, project, starts=1)
    assert differences(whole(adapted, unfreeze_at=9), project) == []


# -- put aside ------------------------------------------------------------------------------------


def test_a_damaged_checkpoint_stays_aside_until_two_good_ones_have_followed(tmp_path):
    run = RunFolder(tmp_path)
    claim = take_claim(run)
    for step in (1, 2, 3, 4):
        commit(run, claim, step)
    aside = run.checkpoints / quarantine(run, f"step-{4:09d}.c1", claim=claim)
    is_there = []
    for step in (None, 5, 6):
        if step is not None:
            commit(run, claim, step)
        prune(run, claim=claim, keep=2)
        is_there.append(aside.exists())
    assert is_there == [True, True, False]
