"""Lightning and HF's Trainer, preempted again and again: optimizer, schedule, counters, metrics and
random numbers come out the same, bit for bit, as the framework itself has them at the end."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.adapters.subjects import FRAMEWORKS, HF, LIGHTNING
from tests.harness.samples import check_samples

from tasuki.runs.runs import RunFolder

LIGHT, HUGGING = "light", "hugging"
OF = {LIGHT: LIGHTNING, HUGGING: HF}


def subjects(*names):
    return pytest.mark.parametrize("subject", names)


@dataclass(frozen=True)
class Ended:
    status: int
    log: str


def go(servers, subject: str, folder: Path, strike: str = "", **settings: str) -> Ended:
    folder.mkdir(exist_ok=True)
    for path in (FRAMEWORKS / "common.py", FRAMEWORKS / f"{subject}.py"):
        (folder / path.name).symlink_to(path) if not (folder / path.name).exists() else None
    log = folder / f"log.{len(list(folder.glob('log.*')))}"
    script = folder / f"{subject}.py"
    settings = {"STRIKE": strike, "TASUKI_SITE": "", **settings}
    started = servers[OF[subject]].start_script(script, "runs/it", log=log, **settings)
    return Ended(started.wait(), log.read_text())


def came_out(folder: Path) -> dict:
    return json.loads((folder / "out.0.json").read_text())


def rows(folder: Path) -> list[tuple]:
    """Every line of metrics that counts: step, split, loss."""
    text = (folder / "runs/it/metrics_history.jsonl").read_text()
    found = [json.loads(line) for line in text.splitlines()]
    keys = ("step", "split", "epoch", "samples", "loss", "val_loss", "eval_loss", "accuracy")
    return [tuple(row.get(key) for key in keys) for row in found]


def check(servers, subject: str, tmp_path: Path, strikes: list[str], **settings: str) -> None:
    twin, struck = tmp_path / "twin", tmp_path / "struck"
    undisturbed = go(servers, subject, twin, **settings)
    assert undisturbed.status == 0, undisturbed.log
    for strike in strikes:
        ended = go(servers, subject, struck, strike, **settings)
        assert ended.status == (75 if strike.endswith(":15") else -9), ended.log
    ended = go(servers, subject, struck, **settings)
    assert ended.status == 0, ended.log
    assert "Resuming from epoch" in ended.log
    assert came_out(struck) == came_out(twin)
    assert rows(struck) == rows(twin)
    assert (struck / "runs/it/training_complete.marker").exists()


@subjects(LIGHT, HUGGING)
def test_a_training_preempted_in_the_middle_of_an_epoch_ends_as_if_it_had_not_been(
    servers, subject, tmp_path
):
    settings = {"ACCUMULATION": "2", "VALIDATE_EVERY": "4", "SCHEDULE": "plateau"}
    check(servers, subject, tmp_path, ["7:15"], **settings)
    (stage,) = check_samples(RunFolder(tmp_path / "struck/runs/it")).values()
    assert stage["status"] == "verified", stage


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("workers", ["0", "2"])
@subjects(LIGHT, HUGGING)
def test_preempted_and_killed_in_turn_a_training_ends_as_if_it_had_not_been(
    servers, subject, workers, tmp_path
):
    # The kill comes two steps after a save, the last notice in the last step but one.
    strikes = ["1:15", "5:9", "11:15", "14:9", "20:15"]
    check(servers, subject, tmp_path, strikes, WORKERS=workers)


@pytest.mark.long
@pytest.mark.timeout(600)
@subjects(LIGHT, HUGGING)
def test_gradients_are_accumulated_as_if_nothing_had_happened(servers, subject, tmp_path):
    strikes = ["2:15", "4:9", "6:15"]
    check(servers, subject, tmp_path, strikes, ACCUMULATION="3", WORKERS="2")


@pytest.mark.long
@pytest.mark.timeout(600)
@subjects(LIGHT, HUGGING)
def test_notices_at_every_border_of_validations_and_epochs_change_nothing(
    servers, subject, tmp_path
):
    """Boundary by boundary: before, at and after validations in the middle and at the end."""
    strikes = [f"{step}:15" for step in range(2, 14)]
    check(servers, subject, tmp_path, strikes, VALIDATE_EVERY="4")


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_module_that_steps_its_optimizer_itself_keeps_gradients_that_are_not_used_yet(
    servers, tmp_path
):
    """It steps after every second batch: every other boundary lies between backward and step."""
    # In optimizer steps, of which two batches have the same number: struck in the first of them.
    check(servers, LIGHT, tmp_path, ["1:15", "3:15", "6:9"], MANUAL="yes")
