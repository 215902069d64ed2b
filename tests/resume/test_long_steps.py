"""A step or a validation that outlasts the notice: the last state that was copied is committed
while it runs."""

from __future__ import annotations

import signal

import pytest
from tests.harness.faulty import events, finish, wait_until
from tests.harness.project import Project, differences, make_project

from tasuki.runs.metrics import read_metrics

CODE = '''
from torch.optim.optimizer import register_optimizer_step_post_hook


def take_long(is_slow, is_stuck):
    """4.2 s, of which a notice of 4 s learns how long it takes; then ten minutes. In the attempt
    that is told so."""
    if "STUCK" in os.environ and is_slow:
        time.sleep(4.2)
    if "STUCK" in os.environ and is_stuck:
        open(os.environ["STUCK"], "w").close()
        time.sleep(600)


class Stuck(Learner):
    """The first step is slow, the second is stuck. Not all calls of `loss` are steps: some settle
    DDP."""

    steps = 0

    def build_model(self):
        register_optimizer_step_post_hook(self.after_step)
        return super().build_model()

    def after_step(self, *_):
        self.steps += 1
        take_long(self.steps == 1, False)

    def loss(self, model, batch):
        take_long(False, self.steps == 1)
        return super().loss(model, batch)


class SlowlyValidated(Learner):
    """The validation of step 0 is slow, that of step 4 is stuck."""

    validations = 0

    def evaluate(self, model, dataset):
        self.validations += 1
        take_long(self.validations == 1, self.validations == 3)
        return {"loss": float(sum(p.sum() for p in model.parameters()))}
'''


def outlast(warm, folder, recipe: str, ranks: int, *, said: str, step: int, **defaults) -> Project:
    """Interrupted while it is stuck, and again without any of that: it ends like its twin."""
    shape = {
        "recipe": recipe,
        "params": {"norm": "layer"},
        "code": CODE,
        "ranks": ranks,
        "stages": [{"name": "one", "data": "d", "epochs": 1}],
        "defaults": {"save": {"every": "1000 steps"}, "log_every": "1 step", **defaults},
        "cluster": {"grace": "4s"},
    }
    project, twin = (make_project(folder / name, **shape) for name in ("p", "twin"))
    stuck = folder / "stuck"
    started = warm.start(project.job.path, STUCK=str(stuck))
    wait_until(stuck.exists, project)
    started.kill(signal.SIGTERM)
    assert started.wait() == 75, project.logs()
    (left,) = events(project, "handed-over")
    assert left["checkpoint"] == f"step-{step:09d}.c1", project.logs()
    assert said in project.logs()
    finish(warm, project, starts=1)
    assert f"Resuming from epoch 0 step {step} (sample {8 * step})" in project.logs()
    finish(warm, twin, starts=1)
    assert differences(project, twin) == []
    return project


@pytest.mark.long
@pytest.mark.parametrize("ranks", [1, 2])
def test_the_last_copied_state_is_committed_when_the_running_step_outlasts_the_notice(
    warm, tmp_path, ranks
):
    outlast(warm, tmp_path, "Stuck", ranks, said="do not fit a notice", step=1)


@pytest.mark.parametrize(
    ("ranks", "save_every"),
    [
        (1, "1000 steps"),
        pytest.param(2, "2 steps", marks=pytest.mark.long),  # a save is due where it validates
    ],
)
def test_no_step_is_lost_when_a_validation_outlasts_the_notice_and_it_is_made_up_for(
    warm, tmp_path, ranks, save_every
):
    said = "the running validation would not have ended in time"
    more = {"save": {"every": save_every}, "validate": {"every": "2 steps"}}
    project = outlast(warm, tmp_path, "SlowlyValidated", ranks, said=said, step=4, **more)
    steps = [row["step"] for row in read_metrics(project.run) if row["split"] == "val"]
    assert steps == [0, 2, 4, 6]
