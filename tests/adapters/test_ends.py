"""The end of a loop, between its last checkpoint and the marker: a kill there costs a start, never
the run, and what follows the loop counts as what is in it. What is logged stands in lines of the
step at which it was logged."""

from __future__ import annotations

import json
import time

import pytest
from tests.adapters.subjects import RANKS, SMALL, Script, Subject, make_script
from tests.harness.samples import check_samples

from tasuki.checkpoint.lineage import list_checkpoints
from tasuki.commands.why import tell_why
from tasuki.errors import EXIT_DONE, EXIT_RESUME_ME
from tasuki.runs.metrics import read_metrics

pytestmark = pytest.mark.timeout(300)

BEGIN = SMALL.replace("    return loss", "    run.log(loss=loss)\n    return loss")
BEST = """
with tasuki.open_run(log_every=2, save="2 steps") as run:
    run.track(model=model, optimizer=opt)
    for batch in run.steps(loader, epochs=4):
        loss = step(batch)
        run.best(loss=loss)
"""
EPOCHS = """
with tasuki.open_run(log_every=2, save="2 steps") as run:
    run.track(model=model, optimizer=opt)
    for epoch in run.epochs(4):
        for batch in run.steps(loader):
            step(batch)
    with torch.no_grad():
        value = model(torch.ones(1, 6)).item()
    run.best(value=value)
    run.log(value=value, at=run.epoch)
    run.save()
"""
EARLY = """
with tasuki.open_run(log_every=2, save="2 steps") as run:
    run.track(model=model, optimizer=opt)
    for batch in run.steps(loader, epochs=4):
        step(batch)
        if run.step == 6:
            break
    run.finish({"stopped": run.step})
"""
BODY = """
with tasuki.open_run(log_every=2, save="5 steps") as run:
    run.track(model=model, optimizer=opt)
    for batch in run.steps(loader, epochs=4, accumulation=2):
        loss = step(batch)
        run.best(loss=loss)
    tasuki.failpoints.failpoint("script.after")
    run.finish({"loss": loss.item(), "drawn": torch.rand(1).item()})
"""
BODY_EPOCHS = """
with tasuki.open_run(log_every=2) as run:
    run.track(model=model, optimizer=opt)
    for epoch in run.epochs(4):
        for batch in run.steps(loader):
            loss = step(batch)
        run.log(seen=loss.item(), split="val")
    tasuki.failpoints.failpoint("script.after")
    run.finish({"loss": loss.item(), "epoch": epoch})
"""
BODY_EARLY = EARLY.replace("run.finish({", 'run.finish({"loss": loss.item(), ').replace(
    "        step(batch)", "        loss = step(batch)"
)
ENDS = {"best": BEST, "epochs": EPOCHS, "early": EARLY}
ENDS |= {"body": BODY, "body-epochs": BODY_EPOCHS, "body-early": BODY_EARLY}
PLACES = ("finish.begin", "finish.weights", "finish.swept", "finish.marker")


def make(folder, name: str) -> Script:
    return make_script(folder, Subject(name, BEGIN + ENDS[name], 12))


@pytest.fixture(scope="module")
def whole(warm, tmp_path_factory):
    """Each of them, undisturbed."""
    known: dict[str, Script] = {}

    def get(name: str) -> Script:
        if name not in known:
            known[name] = make(tmp_path_factory.mktemp("whole") / "p", name)
            assert known[name].attempt(warm) == [EXIT_DONE], known[name].said()
        return known[name]

    return get


def at(name: str, *quick: str) -> list:
    marks = pytest.mark.long
    return [pytest.param(name, p, marks=() if p in quick else marks) for p in PLACES]


@pytest.mark.parametrize(
    ("name", "place"),
    [
        *at("best", "finish.swept"),
        *at("epochs", "finish.marker"),
        *at("early", "finish.begin"),
    ],
)
def test_killed_between_its_last_checkpoint_and_the_marker_it_still_ends_as_if_undisturbed(
    warm, tmp_path, whole, name, place
):
    script = make(tmp_path / "p", name)
    script.attempt(warm, {"at": place, "do": "kill"})
    assert not script.run.is_complete(), script.said()
    assert script.attempt(warm) == [EXIT_DONE], script.said()
    assert script.run.is_complete(), script.said()
    assert script.differences(whole(name)) == [], script.said()
    bests = [
        json.loads(one.run.stage("train").metrics.read_text())["best"]
        for one in (script, whole(name))
    ]
    assert bests[0] == bests[1]


def results(script: Script) -> dict:
    return json.loads(script.run.stage("train").evaluation.read_text())["metrics"]


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("body", "script.after"),
        pytest.param("body", "finish.swept", marks=pytest.mark.long),
        ("body-epochs", "script.after"),
        pytest.param("body-epochs", "finish.begin", marks=pytest.mark.long),
        pytest.param("body-early", "finish.begin", marks=pytest.mark.long),
        pytest.param("body-early", "finish.marker", marks=pytest.mark.long),
    ],
)
def test_results_that_need_a_variable_of_the_loops_body_are_the_same_after_a_kill_before_the_marker(
    warm, tmp_path, whole, name, place
):
    script = make(tmp_path / "p", name)
    script.attempt(warm, {"at": place, "do": "kill"})
    assert not script.run.is_complete(), script.said()
    script.attempt(warm, {"at": place, "do": "kill"})  # once more: nothing is used up by it
    assert script.attempt(warm) == [EXIT_DONE], script.said()
    assert results(script) == results(whole(name))
    assert script.differences(whole(name)) == [], script.said()
    assert check_samples(script.run)["train"]["status"] == "verified"
    # What is gone through again for the sake of the script is told as no loss of the run.
    told = tell_why(script.run, now=time.time())
    assert [one["steps_lost"] for one in told["attempts"]] == [0, 0, 0], told


def test_where_the_save_before_the_last_step_is_damaged_more_steps_are_gone_through(
    warm, tmp_path, whole
):
    script = make(tmp_path / "p", "body")
    script.attempt(warm, {"at": "script.after", "do": "kill"})
    *_, before, _ = sorted(script.run.checkpoints.glob("step-*.c1"))
    (part,) = before.glob("part-00000.safetensors")
    part.write_bytes(part.read_bytes()[:100])
    assert script.attempt(warm) == [EXIT_DONE], script.said()
    assert "are repeated, for what follows the loop" in script.said()
    assert results(script) == results(whole("body"))
    assert script.differences(whole("body")) == [], script.said()


@pytest.mark.long
@pytest.mark.timeout(300)
def test_ranks_go_through_the_last_step_again_together(warm, tmp_path):
    end = """
    tasuki.failpoints.failpoint("script.after")
    mine = {"loss": loss.item()} if dist.get_rank() == 0 else {"loss": None}
    run.finish(mine)
"""
    subject = Subject("ends-2-ranks", RANKS + end, 30, ranks=2)
    undisturbed = make_script(tmp_path / "whole", subject)
    assert undisturbed.attempt(warm) == [EXIT_DONE] * 2, undisturbed.said()
    script = make_script(tmp_path / "p", subject)
    for _ in range(2):
        script.attempt(warm, {"at": "script.after", "do": "kill"})
        assert not script.run.is_complete(), script.said()
    assert script.attempt(warm) == [EXIT_DONE] * 2, script.said()
    assert "the last one is repeated" in script.said()
    assert results(script) == results(undisturbed)
    assert script.differences(undisturbed) == [], script.said()


def test_an_end_that_fails_again_and_again_commits_nothing_and_so_counts_as_no_progress(
    warm, tmp_path
):
    script = make(tmp_path / "p", "body")
    for _ in range(3):
        assert script.attempt(warm, {"at": "script.after", "do": "raise"}) != [EXIT_DONE]
    ends = {parsed.claim for parsed in list_checkpoints(script.run) if parsed.step == 12}
    assert ends == {1}, script.said()
    ended = [script.run.claims / str(claim) / "end.json" for claim in (1, 2, 3)]
    told = [json.loads(path.read_text())["has_progressed"] for path in ended]
    assert told == [True, False, False]


def test_samples_of_a_loop_that_was_left_early_are_verified_up_to_its_last_step(whole):
    script = whole("early")
    stage = check_samples(script.run)["train"]
    assert (stage["status"], stage["samples"]) == ("verified", 56), stage
    metrics = json.loads(script.run.stage("train").metrics.read_text())
    assert (metrics["steps"], metrics["samples"]) == (7, 56)


def test_what_is_logged_after_the_loop_stands_in_its_last_line(whole):
    row = read_metrics(whole("epochs").run)[-1]
    assert (row["step"], row["at"], row["split"]) == (12, 4, "train")
    assert "value" in row and "loss" in row


VALIDATES = """
with tasuki.open_run(log_every=5, save="2 steps") as run:
    run.track(model=model, optimizer=opt)
    for epoch in run.epochs(4):
        for batch in run.steps(loader):
            step(batch)
            if run.step % 3 == 0:
                run.log(inside=run.step, split="val")
        run.log(epoch_loss=epoch, split="val")
        run.log(accuracy=epoch, split="val")
        run.log(robust=epoch, split="noisy")
    run.log(accuracy=9, split="test")
"""


def rows_of(script: Script, split: str) -> dict[int, dict]:
    return {row["step"]: row for row in read_metrics(script.run) if row["split"] == split}


def test_each_validation_has_a_line_at_its_step_whatever_log_every_says(warm, tmp_path):
    script, again = (
        make_script(tmp_path / name, Subject("s", BEGIN + VALIDATES, 12)) for name in ("p", "q")
    )
    assert script.attempt(warm) == [EXIT_DONE], script.said()
    val = rows_of(script, "val")
    assert list(val) == [1, 3, 4, 6, 7, 9, 10, 12]
    assert [val[step]["inside"] for step in (1, 4, 7, 10)] == [0, 3, 6, 9]
    for epoch in range(4):
        row = val[3 * epoch + 3]
        assert (row["epoch_loss"], row["accuracy"], row["samples"]) == (
            epoch,
            epoch,
            24 * epoch + 24,
        )
    assert list(rows_of(script, "noisy")) == [3, 6, 9, 12]
    assert rows_of(script, "test")[12]["accuracy"] == 9
    assert list(rows_of(script, "train")) == [5, 10, 12]
    strike = {"at": "step.done", "do": "term", "count": 4}  # in the middle of an epoch
    assert again.attempt(warm, strike) == [EXIT_RESUME_ME], again.said()
    assert again.attempt(warm) == [EXIT_DONE], again.said()
    assert again.differences(script) == []
