"""`tasuki resume --from`: a run goes on from a checkpoint that a person names, as if nothing had
come after it (B11). The word is durable, nothing is lost, and the result is the undisturbed one."""

from __future__ import annotations

import hashlib
import json
import shutil
import signal
from pathlib import Path

import pytest
from tests.commands.checkpoints import go_on, make_run, two_attempts
from tests.harness.faulty import finish, stopped_ranks, wait_until
from tests.harness.project import Project, differences, make_project
from tests.harness.samples import check_samples
from tests.unit.checkpoint.commits import commit, position
from tests.unit.checkpoint.test_verify import rewrite

from tasuki.checkpoint.lineage import find_latest, lineage, list_checkpoints
from tasuki.checkpoint.manifest import parse_name
from tasuki.checkpoint.verify import read_manifest
from tasuki.clock import SystemClock
from tasuki.commands import back as acting
from tasuki.commands.back import go_back, plan_going_back
from tasuki.commands.prune import prune_run
from tasuki.errors import CheckpointError, RunError, StoreError
from tasuki.runs.attempts import read_attempt_end
from tasuki.runs.back import settle_back
from tasuki.runs.claims import highest_claim
from tasuki.runs.control import Word, everything_said, last_said, say
from tasuki.runs.events import read_events
from tasuki.runs.metrics import MetricLog, read_metrics
from tasuki.runs.view import read_losses, read_view

STAGES = [  # 24 and 12 steps
    {"name": "one", "data": "d", "epochs": 4, "validate": {"every": "5 steps"}},
    {"name": "two", "data": "d", "epochs": 2, "lr": 0.003},
]
KEEP = {"save": {"every": "7 steps", "keep": 9}}


def make(folder: Path, **more) -> Project:
    return make_project(folder, **{"stages": STAGES, "defaults": KEEP, **more})


def kill_at(warm, project: Project, place: str, *, count: int = 1) -> None:
    """Supervisor and rank at once, when the rank has come there."""
    orders = [{"at": place, "do": "stop", "count": count}]
    started = warm.start(project.job.path, TASUKI_FAILPOINTS=json.dumps(orders))
    wait_until(lambda: stopped_ranks(started.pid), project)
    started.kill(signal.SIGKILL)
    started.wait()


def back(project: Project, text: str) -> int:
    going = plan_going_back(project.run, text, accepted=["complete"])
    return go_back(going, clock=SystemClock())


def head(project: Project) -> str:
    """From which checkpoint the next attempt goes on."""
    found = find_latest(project.run, lambda *_: None)
    assert found is not None
    return found.name


def resumed_at(project: Project) -> str:
    """The last line in which a worker said from where."""
    logs = sorted(project.run.logs.glob("*.log"), key=lambda p: int(p.stem.rpartition(".")[2]))
    lines = [li for p in logs for li in p.read_text().splitlines() if "Resuming from" in li]
    return lines[-1]


@pytest.fixture
def undisturbed(whole) -> Project:
    return whole(make)


@pytest.fixture
def done(undisturbed, tmp_path) -> Project:
    """A copy of a complete run: 24 steps of stage one, 12 of stage two."""
    shutil.copytree(undisturbed.folder, tmp_path / "p")
    runs = tmp_path / "p" / "runs"
    job = type(undisturbed.job)(runs / ".jobs" / undisturbed.job.name)
    return Project(tmp_path / "p", type(undisturbed.run)(runs / "exp"), job, undisturbed.stages)


# -- the result -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "stage", "step", "void"),
    [
        ("step-14", "one", 14, ("one", "two")),
        ("step-000000024.c1", "one", 24, ("two",)),  # the very end of stage one
    ],
)
def test_from_any_step_a_run_ends_bit_for_bit_as_the_undisturbed_one(
    warm, done, undisturbed, text, stage, step, void
):
    before = read_metrics(done.run)
    going = plan_going_back(done.run, text, accepted=["complete"])
    assert (going.stage, going.stage_step, going.void) == (stage, step, void)
    claim = go_back(going, clock=SystemClock())
    rows = read_metrics(done.run)
    assert rows and rows != before and len(rows) < len(before)
    assert not done.run.is_complete()
    view = read_view(done.run, until=None, requeue=True)
    assert [one.name for one in view.stages if not one.is_trained] == list(void)
    finish(warm, done)
    if step and void[0] == stage:
        assert f"step {step} (" in resumed_at(done), done.logs()
    assert differences(undisturbed, done) == []
    aside = done.run.aside_of(claim)
    assert (aside / "training_complete.marker").is_file()
    assert sorted(p.name for p in (aside / "stages").iterdir()) == sorted(void)
    assert {told["status"] for told in check_samples(done.run).values()} == {"verified"}


# -- the word is durable, and holds once ----------------------------------------------------------


def test_the_word_survives_kills_before_the_first_step_and_is_used_up_by_the_next_commit(
    warm, done, undisturbed
):
    back(done, "step-14")
    for place in ("worker.hello", "start.found", "start.restored"):
        kill_at(warm, done, place)
        assert head(done) == "step-000000014.c1"
    kill_at(warm, done, "save.pruned")
    assert parse_name(head(done)).step == 21
    finish(warm, done)
    assert "step 21 (" in resumed_at(done)
    assert differences(undisturbed, done) == []


@pytest.mark.parametrize(
    "place",
    [
        "record_back",
        "settle_back",
    ],
)
def test_a_kill_inside_the_command_leaves_a_run_that_went_back_or_one_that_did_not(
    warm, done, undisturbed, monkeypatch, place
):
    going = plan_going_back(done.run, "step-14", accepted=["complete"])

    def die(*_args, **_more):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(acting, place, die)
        with pytest.raises(KeyboardInterrupt):
            go_back(going, clock=SystemClock())
    finish(warm, done)
    went = place == "settle_back"
    assert ("step 14 (" in done.logs()) is went, done.logs()
    assert differences(undisturbed, done) == []


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_what_a_kill_left_untold_is_told_before_the_run_goes_on(
    tmp_path, monkeypatch, is_cancelled
):
    """Metrics of the way to a checkpoint that was left behind, the state, and a hold."""
    run = make_run(tmp_path)
    late = two_attempts(run)[-1]  # the second attempt went on from step 8, not from 12
    for claim, steps in ((1, range(1, 13)), (2, range(9, 11))):
        log = MetricLog(run, claim=claim, clock=SystemClock())
        log.resume(stage="small", step=8)
        for step in steps:
            log.add({"stage": "small", "step": step, "split": "train", "loss": float(claim)})
    say(run, Word.HOLD, reason="look at it", claim=highest_claim(run))
    going = plan_going_back(run, late)
    with monkeypatch.context() as patch:
        patch.setattr(acting, "settle_back", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            go_back(going, clock=SystemClock())
    claim = highest_claim(run)
    if is_cancelled:
        say(run, Word.CANCEL, reason="a person", claim=claim)
    settle_back(run)
    assert [row["loss"] for row in read_metrics(run)] == [1.0] * 12
    assert json.loads(run.training_state.read_text())["last_checkpoint"] == late
    assert [event["kind"] for event in read_events(run)] == ["went-back"]
    assert read_attempt_end(run, claim)["went_back"] == late
    before = everything_said(run)
    assert before[-1].word is (Word.CANCEL if is_cancelled else Word.LIFT)
    settle_back(run)
    assert everything_said(run) == before and len(read_events(run)) == 1


def test_back_twice_in_a_row_the_last_word_counts_and_an_undo_brings_results_back(
    warm, done, undisturbed
):
    stages = {name: (done.run.stage(name).path / "metrics.json").read_bytes() for name in ("one",)}
    back(done, "step-31")
    back(done, "step-7")
    assert head(done) == "step-000000007.c1"
    assert not done.run.stage("one").metrics.exists()
    back(done, "step-000000031.c1")  # forward again, over the border, by its whole name
    assert done.run.stage("one").metrics.read_bytes() == stages["one"]
    assert done.run.stage("one").weights.is_file()
    finish(warm, done)
    assert "step 7 (" in resumed_at(done) and "of stage two" in resumed_at(done)
    assert differences(undisturbed, done) == []


def test_after_a_hold_and_with_a_damaged_newest_checkpoint_it_goes_back(
    warm, tmp_path, undisturbed
):
    project = make(tmp_path / "p")
    kill_at(warm, project, "step.done", count=22)
    newest = project.run.checkpoints / head(project)
    (newest / "part-00000.safetensors").write_bytes(b"torn")
    say(project.run, Word.HOLD, reason="look at it", claim=highest_claim(project.run))
    with pytest.raises(CheckpointError, match=r"part-00000\.safetensors"):
        plan_going_back(project.run, newest.name)
    back(project, "step-7")
    said = last_said(project.run)
    assert said is not None and said.word is Word.LIFT
    finish(warm, project)
    assert "step 7 (" in resumed_at(project)
    assert differences(undisturbed, project) == []


# -- nothing is lost ------------------------------------------------------------------------------


def test_what_is_left_behind_stays_through_all_saves_until_a_person_prunes(warm, tmp_path):
    project = make(tmp_path / "p", defaults={"save": {"every": "3 steps", "keep": 2}})
    kill_at(warm, project, "step.done", count=23)
    names = lineage(project.run)
    target = names[1]
    back(project, target)
    assert head(project) == target
    finish(warm, project)
    there = {str(parsed) for parsed in list_checkpoints(project.run)}
    assert names[0] in there
    # Its best weights are there as well, be it as those of the stage.
    assert read_manifest(project.run.checkpoints / names[0]).facts["best"]
    assert plan_going_back(project.run, names[0], accepted=["complete"]).left
    prune_run(project.run, now=SystemClock().wall())
    assert names[0] not in {str(parsed) for parsed in list_checkpoints(project.run)}


def test_before_anybody_starts_the_checkpoint_is_safe_from_pruning_and_nothing_counts_as_failed(
    done,
):
    back(done, "14")
    back(done, "7")
    prune_run(done.run, now=SystemClock().wall(), keep=2)
    assert head(done) == "step-000000007.c1"
    assert read_losses(done.run).kills == 0
    assert read_view(done.run, until=None, requeue=True).failures == 0


# -- which checkpoint -----------------------------------------------------------------------------


def test_best_is_gone_on_from_where_a_whole_checkpoint_of_its_step_is_there(warm, tmp_path):
    stage = {"name": "one", "data": "d", "epochs": 2, "validate": {"every": "7 steps"}}
    project = make(tmp_path / "p", stages=[stage])
    finish(warm, project)
    best = json.loads(project.run.stage("one").metrics.read_text())["best"]
    assert best["step"] in (7, 12)
    going = plan_going_back(project.run, "best", accepted=["complete"])
    assert going.stage_step == best["step"]
    for name in [n for n in lineage(project.run) if parse_name(n).step == best["step"]]:
        shutil.rmtree(project.run.checkpoints / name)
    with pytest.raises(RunError, match="only the weights are kept") as refused:
        plan_going_back(project.run, "best", accepted=["complete"])
    assert "init_from" in refused.value.hint
    assert str(project.run.stage("one").weights) in refused.value.hint


def test_a_checkpoint_that_was_moved_away_is_taken_back_even_over_a_damaged_one(done, tmp_path):
    name = "step-000000014.c1"
    away = shutil.copytree(done.run.checkpoints / name, tmp_path / "away" / name)
    part = done.run.checkpoints / name / "part-00000.safetensors"
    part.write_bytes(part.read_bytes()[:-1] + b"?")
    with pytest.raises(CheckpointError, match="part-00000"):
        plan_going_back(done.run, "step-14", accepted=["complete"])
    back(done, str(away))
    assert head(done) == name


def test_a_checkpoint_of_another_run_is_taken_only_if_that_run_is_made_of_the_same(
    warm, done, undisturbed, tmp_path
):
    """The twin has trained nothing yet but its start."""
    twin = make(tmp_path / "twin")
    kill_at(warm, twin, "step.done", count=2)
    taken = done.run.checkpoints / "step-000000014.c1"
    spec = json.loads(twin.run.spec.read_text())
    twin.run.spec.write_text(
        json.dumps(spec | {"fingerprints": {**spec["fingerprints"], "spec": "?"}})
    )
    with pytest.raises(RunError, match="differs from `exp` in its spec"):
        plan_going_back(twin.run, str(taken))
    twin.run.spec.write_text(json.dumps(spec))
    with pytest.raises(RunError, match="weights of stage `one`"):
        plan_going_back(twin.run, str(done.run.checkpoints / "step-000000031.c1"))
    claim = back(twin, str(taken))
    assert head(twin) == f"step-000000014.c{claim}"
    finish(warm, twin)
    assert "step 14 (" in resumed_at(twin)
    assert differences(undisturbed, twin) == []
    alone = shutil.copytree(taken, tmp_path / "alone" / "step-000000013.c1")
    with pytest.raises(CheckpointError, match="holds the manifest of step-000000014"):
        plan_going_back(twin.run, str(alone), accepted=["complete"])


@pytest.mark.parametrize("where", ["outside", "../../outside"])
def test_a_forged_checkpoint_of_another_run_cannot_make_going_back_write_elsewhere(tmp_path, where):
    run, other = (make_run(tmp_path / name) for name in ("mine", "theirs"))
    claim = go_on(run, None)
    commit(run, claim, 4)
    taken = commit(other, go_on(other, None), 8).path
    evil = tmp_path / where if where == "outside" else Path(where)
    weights = other.stage("small").weights
    weights.parent.mkdir(parents=True)
    weights.write_bytes(b"chosen by somebody else")
    best = {"metric": "val_loss", "value": 0.5, "step": 3, "file": str(evil)}
    best["sha256"] = hashlib.sha256(weights.read_bytes()).hexdigest()
    rewrite(taken / "manifest.json", facts={"best": best})
    with pytest.raises(CheckpointError, match="no file of ours"):
        go_back(plan_going_back(run, str(taken)), clock=SystemClock())
    assert not list(tmp_path.rglob("outside")) and highest_claim(run) == claim
    best["file"] = "best-000000003-0123456789ab.safetensors"
    rewrite(taken / "manifest.json", facts={"best": best})
    go_back(plan_going_back(run, str(taken)), clock=SystemClock())
    assert (run.stage("small").path / best["file"]).read_bytes() == weights.read_bytes()


@pytest.mark.parametrize("stage", ["/etc", "../../theirs"])
def test_a_stage_that_a_file_tells_of_never_leads_out_of_the_run(tmp_path, stage):
    run = make_run(tmp_path)
    run.spec.write_text(json.dumps({"format": 1, "experiment": "exp", "stages": [{"name": stage}]}))
    commit(run, go_on(run, None), position(4, stage=stage))
    with pytest.raises(StoreError, match="cannot be a folder's name"):
        go_back(plan_going_back(run, "step-4"), clock=SystemClock())


def test_a_strange_folder_is_refused_with_what_it_is(undisturbed, tmp_path):
    other = make(tmp_path / "q", stages=[{"name": "one", "data": "d", "epochs": 1}])
    taken = shutil.copytree(
        undisturbed.run.checkpoints / "step-000000014.c1", tmp_path / "x" / "step-000000014.c1"
    )
    with pytest.raises(RunError, match="nothing in the run tells that it made it"):
        plan_going_back(other.run, str(taken))


def test_a_step_at_the_border_of_two_stages_is_the_start_of_the_later_one(undisturbed):
    going = plan_going_back(undisturbed.run, "24", accepted=["complete"])
    assert (going.stage, going.stage_step, going.void) == ("two", 0, ("two",))


def test_what_cannot_be_gone_back_to_is_refused_with_what_can(undisturbed):
    def refuse(text: str, *accepted: str) -> RunError:
        with pytest.raises(RunError) as refused:
            plan_going_back(undisturbed.run, text, accepted=list(accepted))
        return refused.value

    for text in ("15", "step-000000014.c9", "nowhere/at-all"):
        assert "`step-000000014.c1` (stage one: step 14)" in refuse(text, "complete").hint
    of_stage = refuse("12", "complete")
    assert "at step 12 of the run" in str(of_stage)
    assert of_stage.hint == "step 12 of stage `two` is `--from step-36`"
    # A typo is told before a complete run asks for a word more.
    assert "nothing that `bset` could mean" in str(refuse("bset"))
    complete = refuse("14")
    assert "is complete" in str(complete) and "--accept-change complete" in complete.hint
    assert "`tasuki run --new`" in complete.hint, "`resume` has no such option"
