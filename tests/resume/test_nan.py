"""Numbers that are not finite: nothing of them is committed, and all ranks do the same about it."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file
from tests.harness.faulty import (
    armed,
    diaries,
    events,
    finish,
    leftovers,
    make_faulty,
)
from tests.harness.project import Project, differences
from torch import nn

from tasuki.checkpoint.lineage import list_checkpoints
from tasuki.checkpoint.parts import read_part
from tasuki.checkpoint.verify import verify
from tasuki.data.loader import MicroBatch
from tasuki.runs.claims import list_claims
from tasuki.runs.control import last_said
from tasuki.runs.metrics import read_metrics
from tasuki.train.engine import LossModule, StepEngine

BAD = [3]
"""One sample of 44 is NaN, so one step of six is bad, in every epoch."""
TWO = {"ranks": 2, "params": {"bad": BAD, "norm": "layer"}}
ONE = {"params": {"bad": BAD}}


def skipping(whole, ranks: int) -> Project:
    return whole(make_faulty, defaults={"on_nan": "skip"}, **(TWO if ranks == 2 else ONE))


def check_finite(project: Project) -> None:
    """Every checkpoint there verifies and holds finite numbers only."""
    for parsed in list_checkpoints(project.run):
        verify(project.run.checkpoints / str(parsed))
        for path in (project.run.checkpoints / str(parsed)).glob("*.safetensors"):
            for name, tensor in load_file(path).items():
                assert not tensor.is_floating_point() or tensor.isfinite().all(), (path, name)
    for weights in project.run.path.glob("stages/*/*.safetensors"):
        assert all(t.isfinite().all() for t in load_file(weights).values()), weights


def steps_of(project: Project, kind: str, key: str = "step") -> list[int]:
    return [event[key] for event in events(project, kind)]


# -- one step, in this process -----------------------------------------------------------------


class Recorded(nn.Module):
    """Parameters, BatchNorm, and a buffer that no checkpoint would hold but steps change."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 1))
        self.register_buffer("seen", torch.zeros(()), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += x.sum().detach()
        return self.body(x)


def all_state(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    moments = [t for s in optimizer.state.values() for t in s.values() if torch.is_tensor(t)]
    return [t.detach().clone() for t in (*model.parameters(), *model.buffers(), *moments)]


def mean(model, batch):
    return model(batch).square().mean()


def total(model, batch):
    return model(batch).square().sum(), float(len(batch))


@pytest.mark.parametrize(
    ("loss", "clip", "bad"), [(mean, None, 0), (mean, 1.0, 2), (total, None, 1), (total, 1.0, 0)]
)
def test_a_step_that_is_left_out_leaves_parameters_optimizer_and_buffers_as_they_were(
    loss, clip, bad
):
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Recorded()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    engine = StepEngine(
        LossModule(model, loss), optimizer, device=torch.device("cpu"), clip=clip, world=1
    )
    batches = [torch.randn(4, 4) for _ in range(3)]

    def step(inputs) -> bool:
        parts = [MicroBatch(data, len(data)) for data in inputs]
        return engine.step(iter(parts), 12, is_checked=True)

    assert step(batches)
    before, window = all_state(model, optimizer), list(engine.window.entries)
    spoilt = [batch * float("nan") if n == bad else batch for n, batch in enumerate(batches)]
    assert not step(spoilt)
    after = all_state(model, optimizer)
    assert all(torch.equal(x, y) for x, y in zip(before, after, strict=True))
    assert all(p.grad is None for p in model.parameters())
    assert [id(e[0]) for e in engine.window.entries] == [id(e[0]) for e in window]
    # And a good step that follows changes everything again.
    assert step(batches)
    assert not any(
        torch.equal(x, y) for x, y in zip(before, all_state(model, optimizer), strict=True)
    )


# -- whole runs --------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [1, 2])
def test_skip_leaves_bad_steps_out_counts_them_and_says_so(whole, ranks):
    project = skipping(whole, ranks)
    skipped = steps_of(project, "skipped")
    assert len(skipped) == 4 and len({step // 6 for step in skipped}) == 4, skipped
    for step in skipped:
        said = f"WARNING: step {step} is not finite: it is left out"
        assert project.logs().count(said) == 1
    last = max(project.run.checkpoints.glob("step-*"))
    state = read_part(last, 0, records=verify(last).files)
    assert state["progress"]["skipped"] == 4
    check_finite(project)
    notes = diaries(project, 1)
    assert len(notes) == ranks and all(note == notes[0] for note in notes)
    # A step that is left out changes nothing: the model is the same before it and after.
    passes_before = len(notes[0]) - state["progress"]["step"]  # several ranks try a batch first
    assert bool(passes_before) == (ranks > 1)
    first = passes_before + skipped[0]
    assert notes[0][first] == notes[0][first + 1] != notes[0][first + 2], skipped


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.long)])
def test_roll_back_ends_bit_for_bit_as_skip_does_and_leaves_out_the_same_steps(whole, ranks):
    """The same steps are left out of the same order from the same states: so it must."""
    more = TWO if ranks == 2 else ONE
    project = whole(make_faulty, defaults={"on_nan": "roll_back"}, **more)
    reference = skipping(whole, ranks)
    assert set(steps_of(project, "skipped")) == set(steps_of(reference, "skipped"))
    backs = events(project, "rolled-back")
    assert backs and all(back["to_step"] < back["step"] for back in backs)
    for back in backs:
        assert f"not finite before step {back['step']}: rolled back to {back['checkpoint']}" in (
            project.logs()
        )
    check_finite(project)
    notes = diaries(project, 1)
    assert all(note == notes[0] for note in notes) and len(notes) == ranks
    assert differences(reference, project) == []


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.long)])
def test_where_a_save_finds_it_all_ranks_roll_back_alike(warm, tmp_path, whole, ranks):
    """No line is logged before the save: the save itself must refuse the numbers."""
    more = TWO if ranks == 2 else ONE
    if ranks == 2:  # many roll-backs: that ranks hear of it in different steps is a matter of luck
        more = {**TWO, "stages": [{"name": "one", "data": "d", "epochs": 12}]}
    defaults = {"log_every": "100 steps"}
    reference = whole(make_faulty, defaults={**defaults, "on_nan": "skip"}, **more)
    project = make_faulty(tmp_path / "p", defaults={**defaults, "on_nan": "roll_back"}, **more)
    finish(warm, project, starts=1)
    notes = diaries(project, 1)
    assert all(note == notes[0] for note in notes), "the ranks did not do the same steps"
    assert set(steps_of(project, "skipped")) <= set(steps_of(reference, "skipped"))
    assert events(project, "rolled-back")
    check_finite(project)
    assert differences(reference, project) == []


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.long)])
def test_stop_keeps_the_last_finite_checkpoint_and_names_it(warm, tmp_path, ranks):
    more = TWO if ranks == 2 else ONE
    # The bad sample comes in the first epoch, after the first save; a line is logged much later.
    defaults = {"on_nan": "stop", "log_every": "8 steps", "save": {"every": "2 steps"}}
    project = make_faulty(tmp_path / "p", defaults=defaults, **more)
    assert warm.start(project.job.path).wait() == 1, project.logs()
    said = last_said(project.run)
    assert said is not None and said.word in ("hold", "fail")
    assert "the last good checkpoint is step-" in said.reason, said.reason
    assert "lower `lr`" in said.hint
    assert list_claims(project.run) == [1], "trying again would change nothing"
    check_finite(project)
    assert list_checkpoints(project.run)


def test_weights_that_are_not_finite_are_never_committed(warm, tmp_path):
    """The loss of the last step is finite; what it does to the weights is not."""
    project = make_faulty(
        tmp_path / "p",
        stages=[{"name": "one", "data": "d", "steps": 1}],
        defaults={"lr": 1e38, "weight_decay": 10, "clip": 0, "schedule": "constant", "warmup": 0},
    )
    assert warm.start(project.job.path).wait() == 1
    assert not project.run.is_complete()
    assert [event["ending"] for event in events(project, "attempt-ended")] == ["mistake"]
    check_finite(project)


@pytest.mark.parametrize(
    ("ranks", "place"),
    [
        (1, "loop.roll-back"),
        *(
            pytest.param(ranks, place, marks=pytest.mark.long)
            for ranks, place in (
                *((1, "save.written"), (1, "step.done"), (2, "loop.roll-back")),
                *((2, "save.written"), (2, "step.forward")),
            )
        ),
    ],
)
def test_a_kill_in_the_middle_of_a_roll_back_still_ends_bit_for_bit_as_skip_does(
    warm, tmp_path, whole, ranks, place
):
    """The replay is one step old, or writes its first checkpoint: the next attempt starts over
    from the one before, finds the bad step itself, and rolls back again."""
    more = TWO if ranks == 2 else ONE
    project = make_faulty(tmp_path / "p", defaults={"on_nan": "roll_back"}, **more)
    # The first bad step is found at step 3 (a line is logged), so pass 5 is of the replay.
    count = {"step.done": 5, "step.forward": 5, "save.written": 2}.get(place, 1)
    order = {"at": place, "do": "kill", "count": count, "rank": ranks - 1, "claim": 1}
    finish(warm, project, starts=1, **armed(order))
    claims = {event["claim"] for event in events(project, "rolled-back")}
    assert claims >= ({2} if place == "loop.roll-back" else {1}), project.logs()
    check_finite(project)
    assert leftovers(project.run) == []
    assert differences(skipping(whole, ranks), project) == []


@pytest.mark.parametrize("policy", ["skip", pytest.param("roll_back", marks=pytest.mark.long)])
def test_too_many_bad_steps_stop_the_run_with_a_clear_message(warm, tmp_path, policy):
    project = make_faulty(
        tmp_path / "p",
        params={"bad": list(range(44))},
        defaults={"on_nan": policy, "log_every": "13 steps"},
    )
    assert warm.start(project.job.path).wait() == 1, project.logs()
    said = last_said(project.run)
    assert said is not None and said.word in ("hold", "fail")
    assert "had a gradient or loss that is not finite" in said.reason, said.reason
    assert said.hint == "this is no accident: look at the data, or lower `lr`"
    check_finite(project)


def test_a_bad_step_now_and_then_in_a_long_run_never_stops_it(warm, tmp_path):
    """18 of 108 steps: many, but far from half. There is no loss of theirs to log: it is infinite,
    though its gradient is not, as cross entropy is of a class whose logit is masked."""
    stages = [{"name": "one", "data": "d", "epochs": 18}]
    defaults = {"on_nan": "skip", "log_every": "1 steps"}
    project = make_faulty(
        tmp_path / "p", defaults=defaults, stages=stages, params={"bad_loss": BAD}
    )
    finish(warm, project, starts=1)
    skipped = steps_of(project, "skipped")
    assert len(skipped) == 18
    rows = [row for row in read_metrics(project.run) if row["split"] == "train"]
    assert {row["step"] - 1 for row in rows} == set(range(108)) - set(skipped)
    assert all(row["loss"] > 0 for row in rows)
