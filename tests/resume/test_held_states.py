"""A step that outlasts the notice: the last state that was copied is committed while it runs."""

from __future__ import annotations

import json
import signal
import time

import pytest
from tests.harness.project import differences, make_project

from tasuki.runs.metrics import read_metrics

CODE = '''
from torch.optim.optimizer import register_optimizer_step_post_hook


class Stuck(Learner):
    """The first step takes 4.2 s, the second ten minutes, in the attempt that is told so. Not all
    calls of `loss` are steps: some settle DDP."""

    steps = 0

    def build_model(self):
        register_optimizer_step_post_hook(self.after_step)
        return super().build_model()

    def after_step(self, *_):
        self.steps += 1
        if "STUCK" in os.environ and self.steps == 1:
            time.sleep(4.2)

    def loss(self, model, batch):
        if "STUCK" in os.environ and self.steps == 1:
            open(os.environ["STUCK"], "w").close()
            time.sleep(600)
        return super().loss(model, batch)


class SlowlyValidated(Learner):
    """The validation of step 0 takes 4.2 s, that of step 4 ten minutes, in the attempt that is told
    so."""

    validations = 0

    def evaluate(self, model, dataset):
        self.validations += 1
        if "STUCK" in os.environ and self.validations == 1:
            time.sleep(4.2)
        if "STUCK" in os.environ and self.validations == 3:
            open(os.environ["STUCK"], "w").close()
            time.sleep(600)
        return {"loss": float(sum(p.sum() for p in model.parameters()))}
'''


def events_of(project, kind):
    found = []
    for path in sorted(project.run.events.glob("*.jsonl")):
        found += [json.loads(line) for line in path.read_text().splitlines()]
    return [event for event in found if event["kind"] == kind]


@pytest.mark.long
@pytest.mark.parametrize("ranks", [1, 2])
def test_the_last_copied_state_is_committed_when_the_running_step_outlasts_the_notice(
    warm, tmp_path, ranks
):
    """A step of 4.2 s, a notice of 4 s; the step in which it comes would take ten minutes."""
    shape = {
        "recipe": "Stuck",
        "params": {"norm": "layer"},
        "code": CODE,
        "ranks": ranks,
        "stages": [{"name": "one", "data": "d", "epochs": 1}],
        "defaults": {"save": {"every": "1000 steps"}, "log_every": "1 step"},
        "cluster": {"grace": "4s"},
    }
    project = make_project(tmp_path / "p", **shape)
    stuck = tmp_path / "stuck"
    started = warm.start(project.job.path, STUCK=str(stuck))
    while not stuck.exists():
        time.sleep(0.05)
    started.kill(signal.SIGTERM)
    assert started.wait() == 75, project.logs()
    (left,) = events_of(project, "handed-over")
    assert left["checkpoint"] == "step-000000001.c1", project.logs()
    assert "do not fit a notice" in project.logs()
    assert warm.start(project.job.path).wait() == 0, project.logs()
    assert "Resuming from epoch 0 step 1 (sample 8)" in project.logs()
    twin = make_project(tmp_path / "twin", **shape)
    assert warm.start(twin.job.path).wait() == 0, twin.logs()
    assert differences(project, twin) == []


@pytest.mark.parametrize(
    ("ranks", "save_every"),
    [
        (1, "1000 steps"),
        pytest.param(2, "1000 steps", marks=pytest.mark.long),
        pytest.param(2, "2 steps", marks=pytest.mark.long),  # a save is due where it validates
    ],
)
def test_no_step_is_lost_when_a_validation_outlasts_the_notice_and_it_is_made_up_for(
    warm, tmp_path, ranks, save_every
):
    shape = {
        "recipe": "SlowlyValidated",
        "params": {"norm": "layer"},
        "code": CODE,
        "ranks": ranks,
        "stages": [{"name": "one", "data": "d", "epochs": 1}],
        "defaults": {
            "save": {"every": save_every},
            "validate": {"every": "2 steps"},
            "log_every": "1 step",
        },
        "cluster": {"grace": "4s"},
    }
    project = make_project(tmp_path / "p", **shape)
    stuck = tmp_path / "stuck"
    started = warm.start(project.job.path, STUCK=str(stuck))
    while not stuck.exists():
        time.sleep(0.05)
    started.kill(signal.SIGTERM)
    assert started.wait() == 75, project.logs()
    (left,) = events_of(project, "handed-over")
    assert left["checkpoint"] == "step-000000004.c1", project.logs()
    assert "the running validation would not have ended in time" in project.logs()
    assert warm.start(project.job.path).wait() == 0, project.logs()
    assert "Resuming from epoch 0 step 4 (sample 32)" in project.logs()
    twin = make_project(tmp_path / "twin", **shape)
    assert warm.start(twin.job.path).wait() == 0, twin.logs()
    assert differences(project, twin) == []
    steps = [row["step"] for row in read_metrics(project.run) if row["split"] == "val"]
    assert steps == [row["step"] for row in read_metrics(twin.run) if row["split"] == "val"]
    assert steps == [0, 2, 4, 6]
