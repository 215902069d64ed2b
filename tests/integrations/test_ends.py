"""The end of a loop, between its last checkpoint and the marker: a kill there costs a start, never
the run, and what follows the loop counts as what is in it."""

from __future__ import annotations

import json

import pytest
from tests.integrations.subjects import SMALL, Script, Subject, make_script
from tests.integrations.test_verbs import audit

from tasuki.errors import EXIT_DONE
from tasuki.telemetry.metrics import read_metrics

pytestmark = pytest.mark.timeout(60)

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
EARLY_EPOCH = """
with tasuki.open_run(log_every=2, save="2 steps") as run:
    run.track(model=model, optimizer=opt)
    for epoch in run.epochs(4):
        for batch in run.steps(loader):
            loss = step(batch)
        run.best(loss=loss)
        if epoch == 1:
            break
    run.finish()
"""
ENDS = {"best": BEST, "epochs": EPOCHS, "early": EARLY, "early-epoch": EARLY_EPOCH}
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


def quick(name: str, *places: str) -> list:
    marks = pytest.mark.long
    return [pytest.param(name, p, marks=() if p in places else marks) for p in PLACES]


@pytest.mark.parametrize(
    ("name", "place"),
    [
        *quick("best", "finish.swept"),
        *quick("epochs", "finish.marker"),
        *quick("early", "finish.begin"),
        *quick("early-epoch"),
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
    steps = json.loads(script.run.stage("train").metrics.read_text())
    assert steps["best"] == json.loads(whole(name).run.stage("train").metrics.read_text())["best"]


def test_a_loop_that_was_left_early_is_proven_by_the_audit_up_to_its_last_step(whole):
    script = whole("early")
    stage = audit(script.run)
    assert (stage["verdict"], stage["steps"]) == ("proven", 7), stage
    metrics = json.loads(script.run.stage("train").metrics.read_text())
    assert (metrics["steps"], metrics["samples"]) == (7, 56)


def test_what_is_logged_after_the_loop_stands_in_its_last_line(whole):
    row = read_metrics(whole("epochs").run)[-1]
    assert (row["step"], row["at"], row["split"]) == (12, 4, "train")
    assert "value" in row and "loss" in row
