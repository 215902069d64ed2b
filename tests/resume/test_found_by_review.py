"""What a review of the saving code found; each was silent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.harness.project import differences, make_project
from tests.unit.checkpoint.commits import commit

from tasuki.checkpoint.lineage import find_latest
from tasuki.checkpoint.manifest import Position
from tasuki.checkpoint.parts import read_part
from tasuki.checkpoint.retention import prune, quarantine
from tasuki.clock import SystemClock
from tasuki.loop.saver import Saver
from tasuki.runs.claims import take_claim
from tasuki.runs.runs import RunFolder


def events_of(project, kind: str, *, claim: int) -> list[dict[str, Any]]:
    path = project.run.events / f"{claim}.0.rank0.jsonl"
    found = [json.loads(line) for line in path.read_text().splitlines()]
    return [event for event in found if event["kind"] == kind]


def test_a_resumed_attempt_with_automatic_saves_knows_how_often_to_save(warm, tmp_path):
    stages = [{"name": "one", "data": "d", "epochs": 4}]
    project = make_project(
        tmp_path / "p",
        stages=stages,
        params={"pause": 0.02},  # the notice goes round by the supervisor
        defaults={"save": {"every": "auto"}, "log_every": "1 step"},
    )
    order = [{"at": "step.begin", "do": "term", "count": 9, "claim": 1}]
    assert warm.start(project.job.path, TASUKI_FAILPOINTS=json.dumps(order)).wait() == 75
    assert warm.start(project.job.path).wait() == 0, project.logs()
    chosen, *_ = events_of(project, "interval", claim=2)
    assert 5.0 <= chosen["seconds"] <= 1800.0


TEACHER = '''
class Followed(Learner):
    """A teacher without gradient, large beside the student, that follows once, at the ninth step;
    and a backbone that never changes."""

    def build_model(self):
        model = super().build_model()
        model.teacher = nn.Linear(256, 256)
        model.backbone = nn.Linear(256, 256)
        for part in (model.teacher, model.backbone):
            part.requires_grad_(False)
        return model

    def loss(self, model, batch):
        self.calls += 1

        x, y = batch
        learner = model[:5]
        out = learner(x) + 0 * (model.teacher.weight.sum() + model.backbone.weight.sum())
        return nn.functional.mse_loss(out, y) + 1e-3 * model.teacher.weight.mean()

    def build_schedule(self, optimizer, total_steps):
        return Follow(self, optimizer)


class Follow:
    """The ninth step moves the teacher, as a target network is moved now and then."""

    def __init__(self, recipe, optimizer):
        self.steps = 0

    def step(self):
        self.steps += 1
        if self.steps == 9:
            teacher = MODELS[-1].teacher
            teacher.weight.data.add_(1.0)

    def state_dict(self):
        return {"steps": self.steps}

    def load_state_dict(self, state):
        self.steps = state["steps"]


MODELS = []
plain = Followed.build_model


def remember(self):
    MODELS.append(plain(self))
    return MODELS[-1]


Followed.build_model = remember
'''


def test_a_frozen_parameter_that_moved_once_stays_what_it_became_over_resumes(warm, tmp_path):
    """It is in the part of one checkpoint, and unchanged since the resume from it: the file of
    frozen parameters still holds what it was at the beginning."""
    shape = {
        "recipe": "Followed",
        "code": TEACHER,
        "stages": [{"name": "one", "data": "d", "epochs": 6}],
        "defaults": {"save": {"every": "4 steps"}},
    }
    project = make_project(tmp_path / "p", **shape)
    orders = [
        {"at": "step.begin", "do": "term", "count": 11, "claim": 1},
        {"at": "step.begin", "do": "term", "count": 7, "claim": 2},
        {"at": "step.begin", "do": "term", "count": 5, "claim": 3},
    ]
    while not project.run.is_complete():
        status = warm.start(project.job.path, TASUKI_FAILPOINTS=json.dumps(orders)).wait()
        assert status in (0, 75), project.logs()
    latest = find_latest(project.run, lambda name, error: pytest.fail(f"{name}: {error}"))
    assert latest is not None and latest.manifest.frozen
    twin = make_project(tmp_path / "twin", **shape)
    assert warm.start(twin.job.path).wait() == 0, twin.logs()
    assert differences(project, twin) == []


def position(step: int) -> Position:
    return Position(
        stage="a", stage_number=1, step=step, stage_step=step, epoch=0, samples=step,
        is_start=step == 0, is_end=False,
    )  # fmt: skip


def test_what_is_held_is_never_mixed_with_a_later_step(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "r")
    run.path.mkdir()
    saver = Saver(run, claim=take_claim(run), clock=SystemClock())
    for step in (1, 2, 3):
        saver.hold(position(step), {"w": torch.full((9,), float(step)), "step": step}, facts={})
    saved = saver.publish_held(within_s=1.0)
    assert saved is not None and saved.error is None
    state: Any = read_part(run.checkpoints / "step-000000003.c1", 0)
    assert state["step"] == 3 and state["w"].tolist() == [3.0] * 9


def test_of_what_is_held_only_the_step_that_is_dropped_is_gone(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "r")
    run.path.mkdir()
    saver = Saver(run, claim=take_claim(run), clock=SystemClock())
    for step, value in ((8, 1.0), (10, 2.0)):
        saver.hold(position(step), {"w": torch.full((9,), value)}, facts={})
    saver.drop_held(10)
    assert saver.held_step == 8
    saver.hold(position(8), {"w": torch.full((9,), 3.0)}, facts={})  # the same step once more
    saved = saver.publish_held(within_s=1.0)
    assert saved is not None and saved.name == "step-000000008.c1"
    state: Any = read_part(run.checkpoints / saved.name, 0)
    assert state["w"].tolist() == [3.0] * 9
    saver.drop_held()
    assert saver.held_step is None


def test_where_the_last_commit_is_as_new_as_what_is_held_that_is_the_end(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "r")
    run.path.mkdir()
    saver = Saver(run, claim=take_claim(run), clock=SystemClock())
    saver.begin(position(5), {"w": torch.ones(3)}, facts={})
    saved = saver.publish_held(within_s=10.0)
    assert saved is not None and saved.name == "step-000000005.c1"


def test_a_damaged_checkpoint_stays_aside_until_two_good_ones_have_followed(
    tmp_path: Path,
) -> None:
    run = RunFolder(tmp_path / "r")
    run.path.mkdir()
    claim = take_claim(run)
    for step in (1, 2, 3, 4):
        commit(run, claim, step)
    aside = quarantine(run, f"step-{4:09d}.c1", claim=claim)
    prune(run, claim=claim, keep=2)
    assert (run.checkpoints / aside).exists()
    commit(run, claim, 5)
    prune(run, claim=claim, keep=2)
    assert (run.checkpoints / aside).exists()
    commit(run, claim, 6)
    prune(run, claim=claim, keep=2)
    assert not (run.checkpoints / aside).exists()
