"""What one's own loop, Lightning and HF's Trainer promise alike: preempted again and again, a training
ends with the same weights, optimizer, schedule, counters, metrics and random numbers, bit for bit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

SUBJECTS = Path(__file__).parent / "subjects"
OWN, LIGHTNING, HF = "own", "light", "hugging"


@pytest.fixture
def scripts(request):
    servers = {OWN: "torch_scripts", LIGHTNING: "lightning_scripts", HF: "hf_scripts"}
    return request.getfixturevalue(servers[request.param])


def subjects(*names):
    """The script, and who starts it."""
    found = [pytest.param(name, name, id=name) for name in names]
    return pytest.mark.parametrize(("subject", "scripts"), found, indirect=["scripts"])


def go(scripts, subject: str, folder: Path, strike: str = "", **settings: str):
    folder.mkdir(exist_ok=True)
    script = SUBJECTS / f"{subject}.py"
    return scripts.run(script, folder / "runs" / "it", cwd=folder, STRIKE=strike, **settings)


def came_out(folder: Path) -> dict:
    return json.loads((folder / "out.0.json").read_text())


def rows(folder: Path) -> list[tuple]:
    """Every line of metrics that counts: step, split, loss."""
    text = (folder / "runs/it/metrics_history.jsonl").read_text()
    found = [json.loads(line) for line in text.splitlines()]
    keys = ("step", "split", "epoch", "samples", "loss", "val_loss", "eval_loss", "accuracy")
    return [tuple(row.get(key) for key in keys) for row in found]


def check(scripts, subject: str, tmp_path: Path, strikes: list[str], **settings: str) -> None:
    twin, struck = tmp_path / "twin", tmp_path / "struck"
    undisturbed = go(scripts, subject, twin, **settings)
    assert undisturbed.status == 0, undisturbed.log
    for strike in strikes:
        ended = go(scripts, subject, struck, strike, **settings)
        assert ended.status == (75 if strike.endswith(":15") else -9), ended.log
    ended = go(scripts, subject, struck, **settings)
    assert ended.status == 0, ended.log
    assert "Resuming from epoch" in ended.log
    assert came_out(struck) == came_out(twin)
    assert rows(struck) == rows(twin)
    assert (struck / "runs/it/training_complete.marker").exists()


@subjects(LIGHTNING, HF)
def test_a_training_preempted_in_the_middle_of_an_epoch_ends_as_if_it_had_not_been(
    scripts, subject, tmp_path
):
    settings = {"ACCUMULATION": "2", "VALIDATE_EVERY": "4", "SCHEDULE": "plateau"}
    check(scripts, subject, tmp_path, ["7:15"], **settings)


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("workers", ["0", "2"])
@subjects(OWN, LIGHTNING, HF)
def test_preempted_and_killed_in_turn_a_training_ends_as_if_it_had_not_been(
    scripts, subject, workers, tmp_path
):
    # The kill comes two steps after a save, the last notice in the last step but one.
    strikes = ["1:15", "5:9", "11:15", "14:9", "20:15"]
    check(scripts, subject, tmp_path, strikes, WORKERS=workers)


@pytest.mark.long
@pytest.mark.timeout(600)
@subjects(OWN, LIGHTNING, HF)
def test_gradients_are_accumulated_as_if_nothing_had_happened(scripts, subject, tmp_path):
    strikes = ["2:15", "4:9", "6:15"] if subject != OWN else ["4:15", "9:9", "17:15"]
    check(scripts, subject, tmp_path, strikes, ACCUMULATION="3", WORKERS="2")


@pytest.mark.long
@pytest.mark.timeout(600)
@subjects(OWN, LIGHTNING, HF)
def test_notices_at_every_border_of_validations_and_epochs_change_nothing(
    scripts, subject, tmp_path
):
    """Boundary by boundary: before, at and after validations in the middle and at the end."""
    strikes = [f"{step}:15" for step in range(2, 14)]
    check(scripts, subject, tmp_path, strikes, VALIDATE_EVERY="4")
