"""`tasuki checkpoint`: what is in one, is it whole, where do two differ; and room made safely."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import tasuki
from tasuki.checkpoint.commit import discard_draft, open_draft
from tasuki.checkpoint.frozen import store_frozen
from tasuki.checkpoint.lineage import find_latest, lineage, list_checkpoints
from tasuki.checkpoint.retention import quarantine
from tasuki.checkpoint.verify import verify
from tasuki.commands.checkpoint import show_checkpoints, verify_checkpoints
from tasuki.commands.prune import prune_run
from tasuki.errors import CheckpointError, DamagedCheckpoint, RunError, UsageError
from tasuki.runs.attempts import write_holder
from tasuki.runs.claims import ensure_claim_holds, take_claim
from tasuki.runs.runs import RunFolder
from tests.commands.checkpoints import NOW, commit_frozen, go_on, make_run, two_attempts
from tests.commands.projects import Project, Said
from tests.unit.checkpoint.commits import commit, flip, position
from tests.unit.checkpoint.test_looking import write_newer_manifest


@pytest.fixture
def copy(finished: Project, tmp_path: Path) -> Project:
    """The finished run, to be spoiled."""
    shutil.copytree(finished.folder, tmp_path / "copy")
    return Project(tmp_path / "copy", finished.environment)


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return make_run(tmp_path)


def show(run: RunFolder, what: str = "exp", **more: Any) -> dict[str, Any]:
    return show_checkpoints(what, runs=run.path.parent, now=NOW, **more)


def rows_of(run: RunFolder) -> list[dict[str, Any]]:
    (told,) = show(run)["runs"]
    return told["checkpoints"]


# -- show -----------------------------------------------------------------------------------------
def test_checkpoints_are_shown_as_the_lineage_has_them_then_what_is_outside(run, here, tmp_path):
    names = two_attempts(run)
    assert names == [
        "step-000000010.c2", "step-000000008.c1", "step-000000004.c1", "step-000000012.c1",
    ]  # fmt: skip
    rows = rows_of(run)
    assert [row["name"] for row in rows] == names
    assert [row["is_latest"] for row in rows] == [True, False, False, False]
    assert [row["is_parent"] for row in rows] == [False, True, False, False]
    assert [row["in_lineage"] for row in rows] == [True, True, True, False]
    assert [row["age_s"] for row in rows] == [90.0] * 4
    said = here(tmp_path, "checkpoint", "show", "exp")
    assert said.code == 0 and said.err == "", said
    table = [line.split() for line in said.out.splitlines() if line.startswith("step-")]
    assert [(line[0], line[-1]) for line in table] == [
        (names[0], "latest"),
        (names[1], "parent"),
        (names[2], table[2][-1]),
        (names[3], "outside"),
    ]


def test_what_lies_beside_checkpoints_is_shown_with_its_size(run, here, tmp_path):
    claim = go_on(run, None)
    teacher = torch.arange(40_000.0)
    kept = [commit_frozen(run, claim, step, teacher).name for step in (4, 8)]
    quarantine(run, commit(run, claim, 9).name, claim=claim)
    draft = open_draft(run, claim=claim, position=position(12))
    (draft / "part-00000.json").write_bytes(b"x" * 1234)
    (told,) = show(run)["runs"]
    (frozen,) = told["frozen"]
    assert frozen["bytes"] > 160_000 and sorted(frozen["used_by"]) == kept
    sizes = {one["kind"]: one["bytes"] for one in told["leftovers"]}
    assert sizes.keys() == {"draft", "quarantined"} and sizes["draft"] == 1234
    every = [path for path in run.checkpoints.rglob("*") if path.is_file()]
    assert told["bytes"] == sum(path.stat().st_size for path in every)
    said = here(tmp_path, "checkpoint", "show", "exp")
    assert "frozen parameters of 2 of them" in said.out, said
    assert f"{draft.name}: draft, 1.23 kB" in said.out, said


def test_a_run_that_never_committed_is_no_error_to_show(run, here, tmp_path):
    said = here(tmp_path, "checkpoint", "show", "exp")
    assert said.code == 0 and said.out == "exp: no checkpoints yet\n", said
    said = here(tmp_path, "checkpoint", "verify")
    assert said.code == 0 and "a resume starts from the beginning" in said.out, said
    for words in (["show", "exp@latest"], ["diff", "exp", "exp"]):
        said = here(tmp_path, "checkpoint", *words)
        assert said.code == 1 and "run `exp` has no checkpoints" in said.err, said


def test_what_is_in_a_checkpoint_is_shown_by_group(finished: Project, here):
    said = here(finished.folder, "checkpoint", "show", "exp@latest")
    assert said.code == 0, said
    titles = ("model: ", "optimizer: ", "random states: ", "progress: ")
    places = [said.out.index(f"\n{title}") for title in titles]
    assert places == sorted(places)
    assert (
        "model.0.weight " in said.out and "16 × 6" in said.out and "rank0.random.torch" in said.out
    )
    assert "stage large, its end: epoch 2, step 12 of 12" in said.out


def test_entries_can_be_chosen_by_a_pattern_or_a_part_of_their_name(finished: Project, here):
    def names(pattern: str) -> set[str]:
        told = here(finished.folder, "checkpoint", "show", "exp", "--entries", pattern, "--json")
        return {entry["name"] for entry in told.json()["entries"]}

    assert names("*.weight") == {"model.0.weight", "model.1.weight", "model.4.weight"}
    assert names("running") == {"model.1.running_mean", "model.1.running_var"}
    assert names("nothing-like-it") == set()


def test_a_damaged_part_does_not_hide_the_rest(run):
    saved = commit(run, go_on(run, None), 4, world=2)
    flip(saved.path / "part-00001.json", 9)
    told = show(run, "exp@4")
    assert told["checkpoint"]["state"] == "damaged"
    assert [found["file"] for found in told["checkpoint"]["findings"]] == ["part-00001.json"]
    assert {entry["part"] for entry in told["entries"]} == {0}


# -- which one is meant ---------------------------------------------------------------------------
@pytest.fixture
def three(run: RunFolder) -> RunFolder:
    """Stage `small` ends at step 6, where stage `large` starts; then two steps of it."""
    claim = go_on(run, None)
    commit(run, claim, 3)
    commit(run, claim, 6)
    commit(run, claim, position(6, stage="large", number=2, stage_step=0))
    commit(run, claim, position(8, stage="large", number=2, stage_step=2))
    return run


@pytest.mark.parametrize(
    ("what", "name"),
    [
        ("exp@latest", "step-000000008.c1"),
        ("exp/large", "step-000000008.c1"),
        ("exp/small", "step-000000006.c1"),
        ("exp@3", "step-000000003.c1"),
        ("exp/large@2", "step-000000008.c1"),
        ("exp/large@0", "step-000000006.c1.s2"),
        ("exp@step-000000006.c1", "step-000000006.c1"),
        ("{runs}/exp@3", "step-000000003.c1"),
        ("{runs}/exp/checkpoints/step-000000006.c1.s2/", "step-000000006.c1.s2"),
        ("{runs}/exp/checkpoints/step-000000003.c1/manifest.json", "step-000000003.c1"),
    ],
)
def test_a_checkpoint_is_named_by_run_stage_step_name_or_folder(three, what, name):
    told = show(three, what.format(runs=three.path.parent))
    assert told["checkpoint"]["name"] == name and told["checkpoint"]["run"] == "exp"


def test_a_run_is_named_by_itself_or_its_folder(three):
    for what in ("exp", "exp/", "{runs}/exp", "{runs}/exp/checkpoints"):
        (told,) = show(three, what.format(runs=three.path.parent))["runs"]
        assert len(told["checkpoints"]) == 4


@pytest.mark.parametrize(
    ("what", "error", "hint"),
    [
        ("exq", "there is no run `exq`", "did you mean `exp`?"),
        ("exp/larg", "has no stage `larg`", "did you mean `exp/large`?"),
        ("exp@7", "no checkpoint at step 7", "`exp@step-000000008.c1`, `exp@step-000000006.c1.s2`"),
        ("exp@6", "2 checkpoints at step 6", "`exp@step-000000006.c1.s2`, `exp@step-000000006.c1`"),
        ("exp/large@9", "no checkpoint at step 9 of stage `large`", "there are: `exp@step"),
        ("exp@step-000000006.c2", "no checkpoint `step-000000006.c2`", "did you mean `exp@st"),
        ("exp@last", "`last` is no place in run `exp`", "RUN@latest"),
        ("exp@../../etc", "is no place", "RUN@latest"),
    ],
)  # fmt: skip
def test_what_is_not_there_is_refused_with_the_nearest_that_is(three, what, error, hint):
    with pytest.raises((UsageError, RunError)) as caught:
        show(three, what)
    assert error in caught.value.message and hint in caught.value.hint, caught.value.hint


def test_a_copy_outside_of_any_run_can_be_looked_at_and_verified(three, tmp_path):
    outside = tmp_path / "backup" / "step-000000003.c1"
    shutil.copytree(three.checkpoints / outside.name, outside)
    told = show(three, str(outside))
    assert told["checkpoint"]["run"] is None and told["checkpoint"]["experiment"] == "exp"
    verified = verify_checkpoints(str(outside), runs=tmp_path)
    assert verified["ok"] and verified["runs"][0]["resume_words"] == ""


def test_without_a_word_verify_takes_the_only_run_and_asks_among_several(three, here, tmp_path):
    assert here(tmp_path, "checkpoint", "verify", "--json").json()["ok"]
    commit(make_run(tmp_path, "other"), 1, 4)
    said = here(tmp_path, "checkpoint", "verify")
    assert said.code == 2 and "there are 2 runs" in said.err and "`--all`" in said.err, said
    told = here(tmp_path, "checkpoint", "verify", "--all", "--json").json()
    assert [one["experiment"] for one in told["runs"]] == ["exp", "other"]
    assert here(tmp_path, "checkpoint", "show", "--json").json()["runs"][1]["experiment"] == "other"


# -- verify ---------------------------------------------------------------------------------------
def test_a_flipped_byte_is_found_and_the_one_a_resume_would_take_is_named(copy: Project, here):
    names = lineage(copy.run())
    path = copy.run().checkpoints / names[0] / "part-00000.safetensors"
    flip(path, path.stat().st_size - 3)
    said = here(copy.folder, "checkpoint", "verify", "exp")
    assert said.code == 1 and said.err == "", said
    assert said.out.splitlines()[1].startswith(f"damaged  {names[0]}")
    assert "part-00000.safetensors is damaged between bytes 0 and " in said.out
    assert said.out.splitlines()[-1] == f"a resume takes {names[1]}"
    latest = find_latest(copy.run(), lambda _name, _error: None)
    assert latest is not None and latest.name == names[1]
    whole = here(copy.folder, "checkpoint", "verify", f"exp@{names[1]}")
    assert whole.code == 0 and f"a resume looks at {names[0]} first" in whole.out, whole


def test_what_resume_takes_is_what_the_lineage_gives_whatever_is_damaged(tmp_path):
    """Against find_latest, over all ways to damage any of four checkpoints."""
    run = make_run(tmp_path)
    names = two_attempts(run)
    for spoiled in range(2 ** len(names)):
        chosen = [name for bit, name in enumerate(names) if spoiled >> bit & 1]
        for name in chosen:
            flip(run.checkpoints / name / "part-00000.json", 5)
        (told,) = verify_checkpoints("exp", runs=run.path.parent)["runs"]
        assert told["ok"] == (not chosen)
        try:
            latest = find_latest(run, lambda _name, _error: None)
            assert latest is not None and told["resume"] == latest.name
        except CheckpointError:
            assert told["resume"] is None and "holds the run" in told["resume_words"]
        for name in chosen:
            flip(run.checkpoints / name / "part-00000.json", 5)


def test_a_frozen_file_that_is_damaged_damages_all_that_share_it(run):
    claim = go_on(run, None)
    for step in (4, 8):
        commit_frozen(run, claim, step, torch.arange(40_000.0))
    other = commit(run, claim, 9)
    (file,) = (run.checkpoints / "frozen").iterdir()
    flip(file, 100_000)
    told = verify_checkpoints("exp", runs=run.path.parent)
    rows = told["runs"][0]["checkpoints"]
    assert [row["state"] for row in rows] == ["ok", "damaged", "damaged"]
    assert rows[1]["findings"][0]["file"] == f"frozen/{file.name}"
    assert told["runs"][0]["resume"] == other.name
    with pytest.raises(DamagedCheckpoint):
        verify(run.checkpoints / "step-000000008.c1")


def test_checkpoints_that_were_lost_are_not_taken_for_a_run_that_never_began(run, here, tmp_path):
    go_on(run, two_attempts(run)[0])
    shutil.rmtree(run.checkpoints)
    said = here(tmp_path, "checkpoint", "verify", "exp")
    assert said.code == 1 and "is gone, and all others too" in said.out, said


# -- diff -----------------------------------------------------------------------------------------
def test_a_run_equals_itself_and_of_two_steps_the_first_difference_is_in_the_model(
    finished: Project, here
):
    said = here(finished.folder, "checkpoint", "diff", "exp", "exp@latest")
    assert said.code == 0 and "equal bit for bit: " in said.out, said
    names = lineage(finished.run())
    said = here(finished.folder, "checkpoint", "diff", f"exp@{names[1]}", "exp", "--json")
    assert said.code == 1 and said.err == "", said
    told = said.json()
    assert told["first"]["name"] == "model.0.weight"
    assert told["first"] == told["differing"][0] and not told["equal"]
    assert told["a"]["step"] < told["b"]["step"]
    assert {"model", "optimizer", "random", "progress"} <= {g["group"] for g in told["groups"]}


def test_frozen_parameters_are_compared_too(run, here, tmp_path):
    claim = go_on(run, None)
    teacher = torch.arange(40_000.0)
    commit_frozen(run, claim, 4, teacher.clone())
    teacher[7] += 1
    saved = commit_frozen(run, claim, 8, teacher)
    said = here(tmp_path, "checkpoint", "diff", "exp@4", "exp@8")
    assert said.code == 1 and "first difference: model.teacher\n  float32 [40000]: " in said.out
    assert "largest absolute difference " in said.out and " bits differ; at most " in said.out
    assert "model.student" in said.out
    entries = {entry["name"]: entry for entry in show(run, "exp@8")["entries"]}
    (record,) = saved.manifest.frozen
    assert entries["model.teacher"]["file"] == f"frozen/{record.name}"


# -- as Python ------------------------------------------------------------------------------------
@pytest.mark.long
def test_the_functions_give_what_json_prints(copy: Project, here):
    def said(*words: str) -> Any:
        return here(copy.folder, "checkpoint", *words, "--json").json()

    same: Callable[[Any, Any], bool] = lambda a, b: without_age(a) == without_age(b)  # noqa: E731
    runs = copy.runs
    assert same(tasuki.checkpoint_show("exp", runs=runs), said("show", "exp"))
    shown = tasuki.checkpoint_show("exp", entries="*.bias", runs=runs)
    assert same(shown, said("show", "exp", "--entries", "*.bias"))
    assert tasuki.checkpoint_verify("exp", runs=runs) == said("verify", "exp")
    assert same(tasuki.checkpoint_diff("exp", "exp", runs=runs), said("diff", "exp", "exp"))
    pruned = tasuki.checkpoint_prune("exp", keep=2, is_dry=True, runs=runs)
    assert pruned == said("prune", "exp", "--keep", "2", "--dry-run")


def without_age(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_age(item) for key, item in value.items() if key != "age_s"}
    return [without_age(item) for item in value] if isinstance(value, list) else value


def test_looking_changes_nothing_on_disk(copy: Project, here):
    before = copy.tree()
    for words in (["show"], ["show", "exp@latest"], ["verify"], ["prune", "exp", "--dry-run"]):
        said: Said = here(copy.folder, "checkpoint", *words)
        assert said.code == 0, said
    assert copy.tree() == before


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


def test_what_a_newer_tasuki_wrote_stops_a_prune(run):
    names = two_attempts(run)
    write_newer_manifest(run.checkpoints / names[0])
    with pytest.raises(CheckpointError, match="cannot be judged"):
        prune(run)
    assert len(names_in(run)) == 4


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


@pytest.mark.parametrize("seed", range(12))
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
