"""Holes that an attack has found, and that must stay closed."""

from __future__ import annotations

import os
import shutil
import signal
import time

import pytest
import torch
from tests.harness.project import make_project
from torch import nn

from tasuki.commands.freeze import find_changes
from tasuki.data.loader import MicroBatch
from tasuki.errors import RecipeError, RunError
from tasuki.jobs.phase import Phase, Rank, make_wires
from tasuki.runs.attempts import read_attempt_ends
from tasuki.runs.claims import list_claims
from tasuki.runs.control import Word, last_said, say
from tasuki.runs.values import Cause, Ending
from tasuki.spec.load import load_spec
from tasuki.train.engine import LossModule, StepEngine
from tasuki.train.rows import named


def make_engine(loss) -> StepEngine:
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    module = LossModule(model, loss)
    return StepEngine(module, optimizer, device=torch.device("cpu"), clip=None, world=1)


def test_a_loss_of_two_kinds_in_one_step_is_refused_instead_of_added_up_wrongly():
    outputs = iter(
        [(torch.ones(1, requires_grad=True).sum(), 4.0), torch.ones(1, requires_grad=True).sum()]
    )
    engine = make_engine(lambda model, batch: next(outputs))
    with pytest.raises(RecipeError, match="a mean for one batch"):
        engine.step(iter([MicroBatch(None, 4), MicroBatch(None, 4)]), 8)


def test_what_is_logged_beside_a_loss_depends_on_that_step_alone():
    scalars = iter([{"big": 1.0}, {}])

    def loss(model, batch):
        return model(torch.ones(1, 1)).sum(), 1.0, next(scalars)

    engine = make_engine(loss)
    engine.step(iter([MicroBatch(None, 1)]), 1)
    assert engine.scalars == {"big": 1.0}
    engine.step(iter([MicroBatch(None, 1)]), 1)
    assert engine.scalars == {}


def test_a_number_to_log_cannot_take_the_place_of_a_rows_own():
    with pytest.raises(RecipeError, match="`step`"):
        named({"mae": 1.0, "step": 2.0})


class Gone:
    """A rank that has exited."""

    pid = 0

    def __init__(self, status: int) -> None:
        self._status = status

    def poll(self) -> int:
        return self._status


def test_a_rank_signalled_in_start_up_by_nobody_the_supervisor_knows_counts_as_a_failure():
    wire, theirs = make_wires()
    phase = Phase("train", "one", [Rank(0, Gone(75), wire)])
    theirs.sendall(b'{"kind": "done", "ending": "handed-over", "cause": "preempted"}\n')
    theirs.close()
    phase.reap(0.0)
    end = phase.ending()
    phase.close()
    assert (end.ending, end.cause) == (Ending.FAILED, Cause.NONE)
    assert "signal before its first step" in end.message


def test_a_cancel_that_comes_while_the_claim_is_taken_is_seen(warm, tmp_path):
    project = make_project(tmp_path / "p")
    say(project.run, Word.CANCEL, reason="a person", claim=0)
    assert warm.start(project.job.path).wait() == 75
    assert list_claims(project.run) == []  # seen before the claim; after it, by the second look


def test_a_run_whose_checkpoints_are_gone_is_held_instead_of_started_over(warm, tmp_path):
    project = make_project(tmp_path / "p", params={"pause": 0.02})
    started = warm.start(project.job.path)
    until = time.monotonic() + 30
    while not project.run.training_state.exists():
        assert time.monotonic() < until, project.logs()
    started.kill(signal.SIGKILL)
    started.wait()
    shutil.rmtree(project.run.checkpoints)
    assert warm.start(project.job.path).wait() == 1
    said = last_said(project.run)
    assert said is not None and said.word is Word.HOLD and "is gone" in said.reason


def test_a_stage_whose_mark_is_lost_is_not_trained_again_behind_a_later_one(warm, tmp_path):
    stages = [{"name": "a", "data": "d", "epochs": 1}, {"name": "b", "data": "d", "epochs": 4}]
    project = make_project(tmp_path / "p", stages=stages, params={"pause": 0.02})
    started = warm.start(project.job.path)
    until = time.monotonic() + 30
    while not list(project.run.checkpoints.glob("step-00000001[0-9].c1")):
        assert time.monotonic() < until, project.logs()
    started.kill(signal.SIGKILL)
    started.wait()
    project.run.stage("a").metrics.unlink()
    assert warm.start(project.job.path).wait() == 1
    said = last_said(project.run)
    assert said is not None and said.word is Word.HOLD and "not marked as done" in said.reason


def test_weights_that_are_not_finite_are_never_committed(warm, tmp_path):
    """The loss of the last step is finite; what it does to the weights is not."""
    project = make_project(
        tmp_path / "p",
        stages=[{"name": "one", "data": "d", "steps": 1}],
        defaults={"lr": 1e38, "weight_decay": 10, "clip": 0, "schedule": "constant", "warmup": 0},
    )
    assert warm.start(project.job.path).wait() == 1
    assert not project.run.is_complete()
    ends = read_attempt_ends(project.run)
    assert [end["ending"] for end in ends.values() if end] == ["mistake"]


def test_what_decides_which_samples_come_when_cannot_be_accepted_into_a_begun_run(warm, tmp_path):
    project = make_project(tmp_path / "p")
    assert warm.start(project.job.path).wait() == 0
    for change in ("epochs=9", "seed=8", "effective_batch=4"):
        spec = load_spec(str(project.folder), settings=[change], environ={})
        key = f"stages.one.{change.split('=')[0]}"
        with pytest.raises(RunError) as caught:
            find_changes(project.run, spec.experiments[0], accepted=[key])
        assert "--new" in caught.value.hint and "--accept-change" not in caught.value.hint


def test_two_first_starts_at_once_leave_the_whole_code(tmp_path):
    """Real processes that freeze the same run, again and again."""
    from tasuki.commands.freeze import snapshot_code
    from tasuki.runs.runs import RunFolder

    project = make_project(tmp_path / "p")
    for number in range(20):
        (project.folder / f"module_{number}.py").write_text("x = 1\n" * 200)
    spec = load_spec(str(project.folder), environ={})
    run = RunFolder(tmp_path / "run")
    run.path.mkdir()
    children = []
    for _ in range(4):
        pid = os.fork()
        if pid == 0:
            try:
                for _ in range(10):
                    snapshot_code(run, spec)
                os._exit(0)
            finally:
                os._exit(1)
        children.append(pid)
    assert [os.waitpid(pid, 0)[1] for pid in children] == [0, 0, 0, 0]
    assert [path.name for path in run.path.iterdir()] == ["code"]
    assert len(list(run.code.glob("module_*.py"))) == 20


def test_a_run_s_code_holds_no_runs_of_other_specs(tmp_path):
    """Each would hold all earlier ones, and every new run would look like changed code."""
    from tasuki.commands.freeze import is_code_changed, snapshot_code
    from tasuki.runs.runs import RunFolder

    project = make_project(tmp_path / "p")
    spec = load_spec(str(project.folder), environ={})
    run = RunFolder(tmp_path / "run")
    run.path.mkdir()
    snapshot_code(run, spec)
    before = sorted(path.relative_to(run.code) for path in run.code.rglob("*"))
    shutil.copytree(spec.runs, project.folder / "runs-of-another-spec")
    assert list((project.folder / "runs-of-another-spec").rglob("recipes.py"))
    other = RunFolder(tmp_path / "other")
    other.path.mkdir()
    snapshot_code(other, spec)
    assert sorted(path.relative_to(other.code) for path in other.code.rglob("*")) == before
    assert not is_code_changed(project.run, spec)
