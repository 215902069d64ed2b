"""`tasuki checkpoint prune`: room is made, and never at the cost of what a resume would take."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from tasuki.checkpoint.commit import discard_draft, open_draft
from tasuki.checkpoint.frozen import store_frozen
from tasuki.checkpoint.lineage import find_latest, lineage, list_checkpoints
from tasuki.checkpoint.retention import quarantine
from tasuki.checkpoint.verify import verify
from tasuki.commands.prune import prune_run
from tasuki.errors import CheckpointError, DamagedCheckpoint, UsageError
from tasuki.runs.attempts import write_holder
from tasuki.runs.claims import ensure_claim_holds, take_claim
from tasuki.runs.runs import RunFolder
from tests.commands.checkpoints import NOW, commit_frozen, go_on, make_run, two_attempts
from tests.commands.person import Project
from tests.unit.checkpoint.commits import commit, flip, position
from tests.unit.checkpoint.test_looking import write_newer_manifest


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return make_run(tmp_path)


def prune(run: RunFolder, **more: Any) -> dict[str, Any]:
    return prune_run(run, now=NOW, **{"keep": 2, **more})


def names_in(run: RunFolder) -> list[str]:
    return sorted(str(parsed) for parsed in list_checkpoints(run))


def test_the_newest_two_and_the_parent_stay_and_the_room_is_told(run, here, tmp_path):
    parent = two_attempts(run)[1]
    names = [commit(run, 2, step).name for step in (14, 18)]
    before = sum(path.stat().st_size for path in run.checkpoints.rglob("*") if path.is_file())
    dry = here(tmp_path, "checkpoint", "prune", "exp", "--keep", "2", "--dry-run", "--json").json()
    assert len(names_in(run)) == 6
    told = here(tmp_path, "checkpoint", "prune", "exp", "--keep", "2", "--json").json()
    assert names_in(run) == sorted([parent, *names]) == sorted(told["kept"])
    assert dry | {"dry_run": False} == told
    after = sum(path.stat().st_size for path in run.checkpoints.rglob("*") if path.is_file())
    assert told["bytes"] == before - after > 0
    said = here(tmp_path, "checkpoint", "prune", "exp", "--keep", "2")
    assert said.code == 0 and said.out == "nothing to remove: 3 checkpoints stay\n", said


def test_without_keep_the_spec_says_how_many_stay(finished: Project, here):
    said = here(finished.folder, "checkpoint", "prune", "exp", "--dry-run", "--json")
    assert said.code == 0 and said.json()["keep"] == 3 and said.json()["removed"] == [], said
    words = ("checkpoint", "prune", "exp", "--keep", "2", "--dry-run")
    said = here(finished.folder, *words)
    assert said.out.startswith("would remove step-") and "2 checkpoints stay" in said.out, said


def test_fewer_than_two_is_refused(run):
    two_attempts(run)
    with pytest.raises(UsageError, match="2 good checkpoints stay"):
        prune(run, keep=1)
    assert len(names_in(run)) == 4


def test_damaged_ones_do_not_count_and_nothing_goes_when_none_is_whole(run):
    claim = go_on(run, None)
    names = [commit(run, claim, step).name for step in (2, 4, 6, 8)]
    # As long as it was: only who reads every byte sees it.
    flip(run.checkpoints / names[3] / "part-00000.json", 5)
    told = prune(run)
    assert told["kept"] == names[:0:-1] and [one["name"] for one in told["removed"]] == names[:1]
    for name in names[1:3]:
        flip(run.checkpoints / name / "part-00000.json", 5)
    with pytest.raises(CheckpointError, match="is whole: nothing was removed"):
        prune(run)
    assert names_in(run) == names[1:]


def test_what_a_newer_tasuki_wrote_stops_a_prune(run):
    names = two_attempts(run)
    write_newer_manifest(run.checkpoints / names[0])
    with pytest.raises(CheckpointError, match="cannot be judged"):
        prune(run)
    assert len(names_in(run)) == 4


def test_a_run_that_is_running_is_not_touched(run, here, tmp_path):
    two_attempts(run)
    write_holder(run, 2, job="j", start=1, at=NOW)
    said = here(tmp_path, "checkpoint", "prune", "exp", "--keep", "2")
    assert said.code == 1 and "run `exp` is running" in said.err, said
    assert "hint: wait until it is done, or end it with `tasuki cancel exp`" in said.err
    assert len(names_in(run)) == 4


def test_leftovers_of_earlier_attempts_go_and_those_of_the_last_stay(run):
    first = go_on(run, None)
    names = [commit(run, first, step).name for step in (4, 8, 9)]
    drafts = [open_draft(run, claim=first, position=position(12))]
    second = go_on(run, names[1])
    drafts.append(open_draft(run, claim=second, position=position(12)))
    (run.checkpoints / ".trash-step-000000001.c1-00000000").mkdir()
    aside = quarantine(run, names[2], claim=second)
    told = prune(run)
    assert sorted(one["kind"] for one in told["removed"]) == ["draft", "quarantined", "trash"]
    assert not drafts[0].exists() and drafts[1].exists() and not (run.checkpoints / aside).exists()
    assert names_in(run) == names[:2]
    run.marker.write_text("{}")  # now nobody hands over any more
    assert [one["kind"] for one in prune(run)["removed"]] == ["draft"]


def test_a_quarantined_one_stays_while_fewer_than_two_are_whole(run):
    claim = go_on(run, None)
    commit(run, claim, 4)
    aside = quarantine(run, commit(run, claim, 8).name, claim=claim)
    assert prune(run)["removed"] == [] and (run.checkpoints / aside).exists()


def test_frozen_parameters_go_with_the_last_checkpoint_that_needs_them(run):
    claim = go_on(run, None)
    old, new = torch.arange(40_000.0), torch.arange(40_000.0) + 1
    saved = [commit_frozen(run, claim, step, old) for step in (2, 4)]
    saved += [commit_frozen(run, claim, step, new) for step in (6, 8)]
    draft = open_draft(run, claim=claim, position=position(9))
    # Somebody may be about to refer to it.
    assert {one["kind"] for one in prune(run, is_dry=True)["removed"]} == {"checkpoint"}
    discard_draft(draft)
    told = prune(run)
    assert [one["kind"] for one in told["removed"]] == ["checkpoint", "checkpoint", "frozen"]
    (left,) = (run.checkpoints / "frozen").iterdir()
    assert left.name == saved[2].manifest.frozen[0].name
    assert told["bytes"] > 160_000
    assert all(verify(run.checkpoints / name) for name in names_in(run))


# -- while an attempt starts ----------------------------------------------------------------------


def test_an_attempt_that_starts_meanwhile_ends_the_prune_and_loses_nothing(run):
    two_attempts(run)
    before = names_in(run)
    told = prune(run, on_progress=lambda _: take_claim(run))
    assert told["removed"] == [] and " has taken " in told["stopped"]
    assert names_in(run) == before


@pytest.mark.parametrize("seed", range(30))
def test_no_prune_takes_what_a_resume_would_take(tmp_path, monkeypatch, seed):
    """Random runs, damaged at random; an attempt may start before any removal."""
    draw = random.Random(seed)
    run = make_run(tmp_path)
    parent: str | None = None
    for _ in range(draw.randint(1, 3)):
        claim = go_on(run, parent)
        steps = sorted(draw.sample(range(1, 60), draw.randint(1, 4)))
        own = [commit(run, claim, step).name for step in steps]
        parent = draw.choice(own)  # what is beyond it was rolled back
    for name in names_in(run):
        if draw.random() < 0.3:
            flip(run.checkpoints / name / "part-00000.json", 5)
    good = {name for name in lineage(run) if is_good(run, name)}
    if not good:
        with pytest.raises(CheckpointError):
            prune(run)
        return
    latest = find_latest(run, lambda _name, _error: None)
    assert latest is not None
    looks = Counting(run, take_at=draw.choice([1, 2, 3, None]))
    monkeypatch.setattr("tasuki.checkpoint.leftovers.ensure_claim_holds", looks)
    prune(run)
    after = find_latest(run, lambda _name, _error: None)
    assert after is not None and after.name == latest.name
    left = {name for name in lineage(run) if is_good(run, name)}
    assert left <= good and len(left) >= min(2, len(good))


def is_good(run: RunFolder, name: str) -> bool:
    try:
        verify(run.checkpoints / name)
    except DamagedCheckpoint:
        return False
    return True


class Counting:
    """The real check of a claim, with somebody who takes one right behind the n-th."""

    def __init__(self, run: RunFolder, *, take_at: int | None) -> None:
        self._run, self._take_at, self._looks = run, take_at, 0

    def __call__(self, run: RunFolder, claim: int) -> None:
        ensure_claim_holds(run, claim)
        self._looks += 1
        if self._looks == self._take_at:
            take_claim(self._run)


def test_a_frozen_file_is_put_back_when_an_attempt_started_that_may_use_it(run, monkeypatch):
    claim = go_on(run, None)
    commit(run, claim, 4)
    store_frozen(run, {"teacher": torch.arange(40_000.0)})
    (file,) = (run.checkpoints / "frozen").iterdir()
    content = file.read_bytes()
    monkeypatch.setattr("tasuki.checkpoint.leftovers.ensure_claim_holds", Counting(run, take_at=1))
    told = prune(run)
    assert told["stopped"] and told["removed"] == []
    assert file.read_bytes() == content and not list(run.checkpoints.glob(".trash-*"))


@pytest.mark.long
def test_a_run_that_was_pruned_by_hand_goes_on_bit_for_bit(project, here):
    """Handed over, pruned, resumed; then compared with its undisturbed twin by `diff`."""
    stages = [{"name": "one", "data": "d", "epochs": 8}]
    made = project(stages=stages, params={"pause": 0.05}, cluster__requeue=False)
    made.change(defaults__save={"every": "3 steps", "keep": 5})
    said = here(made.folder, "run", "--preempt-at", "1800ms")
    assert said.code == 75, f"{said}\n{made.logs()}"
    told = here(made.folder, "checkpoint", "prune", "exp", "--keep", "2", "--json").json()
    assert len(told["kept"]) == 2 and told["stopped"] is None
    for words in (["resume", "exp"], ["run", "--new"]):
        said = here(made.folder, *words)
        assert said.code == 0, f"{said}\n{made.logs()}"
    said = here(made.folder, "checkpoint", "diff", "runs/exp", "runs/exp-2")
    assert said.code == 0 and "equal bit for bit" in said.out, said
