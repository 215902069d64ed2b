"""A step that runs out of memory leaves everything as it was."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from tests.train.engines import CPU, all_state, are_equal, make_engine
from torch import nn

from tasuki.data.loader import MicroBatch
from tasuki.testing import memory_cap
from tasuki.train.buffers import keep_buffers, put_buffers_back
from tasuki.train.engine import StepEngine
from tasuki.train.offload import OffloadedOptimizer
from tasuki.train.recompute import recompute
from tasuki.train.undo import DoesNotFit, Undo


class Drawing(nn.Module):
    """BatchNorm, dropout, a mask that never moves, and draws from all three generators."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 64), nn.BatchNorm1d(64), nn.Dropout(0.5))
        self.head = nn.Linear(64, 1)
        self.register_buffer("mask", torch.ones(64))
        self.register_buffer("seen", None, persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shift = random.random() + float(np.random.rand())
        seen = torch.zeros(()) if self.seen is None else self.seen
        self.seen = seen + x.detach().sum()
        return self.head(self.body(x + shift) * self.mask)


def mean(model, batch):
    return model(batch).square().mean()


def make(*, is_offloaded: bool = False) -> tuple[StepEngine, nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    model = Drawing()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    stepper = OffloadedOptimizer(optimizer) if is_offloaded else optimizer
    engine = make_engine(model, mean, stepper)
    engine.undo = Undo(model, CPU)
    return engine, model, optimizer


def states() -> tuple[object, ...]:
    numpy = np.random.get_state()
    return random.getstate(), numpy[1].tolist(), numpy[2], torch.get_rng_state().tolist()


def steps(engine: StepEngine, sizes: list[int], *, samples: int = 64) -> None:
    data = torch.linspace(-1, 1, samples * 4).reshape(samples, 4)
    parts = [MicroBatch(part, len(part)) for part in data.split(sizes)]
    engine.step(iter(parts), samples)


@pytest.mark.parametrize(
    ("num_before", "sizes"), [(0, [64]), (1, [8, 8, 48]), (2, [64]), (5, [8, 8, 48])]
)
def test_a_step_that_does_not_fit_is_as_if_it_had_never_begun(num_before, sizes):
    """Wherever the passes before it stand, and whichever micro-batch is the one too many."""
    engine, model, optimizer = make()
    for _ in range(num_before):
        steps(engine, [16, 16, 16, 16])
    before, random_before = all_state(model, optimizer), states()
    window, seen = list(engine.window.entries), model.seen
    # Room for 16 samples at once beside what is there, not for 48.
    with memory_cap("48K", model) as cap:
        for state in optimizer.state.values():
            for value in state.values():
                cap.count(value)
        with pytest.raises(DoesNotFit) as caught:
            steps(engine, sizes)
        assert caught.value.is_undone and isinstance(caught.value.error, torch.OutOfMemoryError)
    assert are_equal(before, all_state(model, optimizer))
    assert states() == random_before
    assert model.seen is seen
    assert all(p.grad is None for p in model.parameters())
    assert engine.window.entries == window
    # And so the next step is that of a run in which nothing happened.
    steps(engine, [16, 16, 16, 16])
    other, twin, twins = make()
    for _ in range(num_before + 1):
        steps(other, [16, 16, 16, 16])
    assert are_equal(all_state(model, optimizer), all_state(twin, twins))


def run_out(engine: StepEngine) -> DoesNotFit:
    data = torch.ones(8, 4)
    call = engine._call
    engine._call = lambda batch: (call(batch), torch.empty(10**15))
    with pytest.raises(DoesNotFit) as caught:
        engine.step(iter([MicroBatch(data, 8)]), 8)
    engine._call = call
    return caught.value


def move_mask(model: nn.Module) -> None:
    model.mask.mul_(0.5)


def replace_mask(model: nn.Module) -> None:
    model.mask = model.mask * 0.5


def add_one(model: nn.Module) -> None:
    model.register_buffer("new", torch.ones(1))


def swap_mean(model: nn.Module) -> None:
    model.body[1].running_mean.data = torch.ones(64)


@pytest.mark.parametrize("change", [move_mask, replace_mask, add_one, swap_mean])
def test_what_cannot_be_undone_for_certain_is_not_called_undone(change):
    """A buffer that lay still in the first steps and moved since: when, nobody knows."""
    engine, model, _ = make()
    for _ in range(3):
        steps(engine, [64])
    assert run_out(engine).is_undone
    change(model)
    assert not run_out(engine).is_undone


def test_a_first_step_may_run_out_of_memory_again_and_again():
    """What a step that was undone has not moved is not taken for what no step moves."""
    engine, model, _ = make()
    for _ in range(3):
        assert run_out(engine).is_undone
    for _ in range(3):
        steps(engine, [64])
    assert run_out(engine).is_undone
    other, twin, _ = make()
    for _ in range(3):
        steps(other, [64])
    assert are_equal([*model.state_dict().values()], [*twin.state_dict().values()])


def follow(model: nn.Module) -> None:
    """A teacher, without a version counter."""
    model.teacher.weight.data.mul_(0.9).add_(model.head.weight.data, alpha=0.1)


@pytest.mark.parametrize(("num_before", "is_moved"), [(0, True), (3, True), (3, False)])
def test_a_frozen_parameter_that_a_pass_moves_is_not_called_undone(num_before, is_moved):
    engine, model, _ = make()
    model.teacher = nn.Linear(64, 1).requires_grad_(False)
    engine.undo = Undo(model, CPU)
    for _ in range(num_before):
        steps(engine, [64])
    if is_moved:
        model.register_forward_pre_hook(lambda model, _: follow(model))
    assert run_out(engine).is_undone is not is_moved


@pytest.mark.parametrize("is_offloaded", [False, True])
def test_what_a_loss_makes_of_out_of_memory_is_still_out_of_memory(is_offloaded):
    engine, model, optimizer = make(is_offloaded=is_offloaded)
    steps(engine, [32, 32])
    before, random_before = all_state(model, optimizer), states()

    def complaining(batch):
        try:
            return mean(model, batch), torch.empty(10**15)
        except RuntimeError as error:
            raise ValueError("the loss failed") from error

    engine._call = complaining
    with pytest.raises(DoesNotFit) as caught:
        engine.step(iter([MicroBatch(torch.ones(8, 4), 8)]), 8)
    assert caught.value.is_undone and states() == random_before
    assert are_equal(before, all_state(model, optimizer))


def test_a_loss_that_fails_otherwise_is_not_out_of_memory():
    engine, _, _ = make()

    def failing(batch):
        try:
            torch.empty(10**15)
        except RuntimeError:
            raise KeyError("label") from None

    engine._call = failing
    with pytest.raises(KeyError):
        engine.step(iter([MicroBatch(torch.ones(8, 4), 8)]), 8)


def test_a_pass_that_is_made_again_may_run_out_of_memory_in_the_backward_pass():
    """Gradient checkpointing: buffers and random numbers are those of the first pass just then."""
    engine, model, optimizer = make()
    recompute(model, ["body"])
    steps(engine, [64])
    before, random_before = all_state(model, optimizer), states()
    calls = []

    def in_second(*_):
        calls.append(torch.is_grad_enabled())
        if len(calls) == 2:
            torch.empty(10**15)

    handle = model.body[1].register_forward_hook(in_second)
    with pytest.raises(DoesNotFit) as caught:
        steps(engine, [64])
    handle.remove()
    assert len(calls) == 2 and caught.value.is_undone
    assert states() == random_before
    assert are_equal(before, all_state(model, optimizer))


@pytest.mark.parametrize("is_checked", [True, False])
def test_in_fp16_scale_and_growth_are_as_they_were(is_checked):
    def fresh() -> tuple[StepEngine, nn.Module]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.Linear(16, 1))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        engine = make_engine(model, mean, optimizer, precision="fp16")
        engine.undo = Undo(model, CPU)
        return engine, model

    def step(engine: StepEngine) -> None:
        batch = MicroBatch(torch.linspace(-1, 1, 32).reshape(8, 4), 8)
        engine.step(iter([batch]), 8, is_checked=is_checked)

    (engine, model), (other, twin) = fresh(), fresh()
    step(engine)
    step(other)
    kept = engine.scaling.state()
    handle = model[0].register_full_backward_hook(lambda *_: torch.empty(10**15))
    with pytest.raises(DoesNotFit) as caught:
        step(engine)
    handle.remove()
    assert caught.value.is_undone and engine.scaling.state() == kept
    for one in (engine, other):
        step(one)
    assert engine.scaling.state() == other.scaling.state()
    assert are_equal([*model.state_dict().values()], [*twin.state_dict().values()])


def test_in_the_optimizers_step_nothing_is_called_undone():
    engine, _, optimizer = make()
    optimizer.register_step_pre_hook(lambda *_: torch.empty(10**15))
    with pytest.raises(DoesNotFit) as caught:
        steps(engine, [64])
    assert not caught.value.is_undone and not caught.value.is_in_passes


def test_buffers_larger_than_64_mb_are_not_copied_and_not_called_undone():
    model = nn.Linear(4, 1)
    model.register_buffer("huge", torch.zeros(17 << 20))
    undo = Undo(model, CPU)
    for _ in range(3):
        undo.begin()
    assert not undo._moving and not undo._still
    assert not undo.put_back()


def test_an_engine_that_was_not_asked_to_undo_raises_torchs_own_error():
    engine, _, _ = make()
    engine.undo = None
    with memory_cap("16K"), pytest.raises(torch.OutOfMemoryError):
        steps(engine, [64])


# -- buffers ------------------------------------------------------------------------------------


class Holder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("late", None)
        self.register_buffer("wide", torch.ones(1).expand(4))
        self.register_buffer("plain", torch.zeros(3))
        self.norm = nn.BatchNorm1d(3)


def test_all_of_them_come_back_also_those_that_were_not_there_yet():
    model = Holder()
    before = {name: value.clone() for name, value in model.named_buffers()}
    plain = model.plain
    kept = keep_buffers(model)
    model.late = torch.full((2,), torch.nan)
    model.wide = torch.zeros(4)
    model.plain.add_(1)
    model.norm(torch.randn(4, 3))
    put_buffers_back(kept)
    after = dict(model.named_buffers())
    assert model.late is None and model.plain is plain
    assert after.keys() == before.keys()
    assert all(torch.equal(value, after[name]) for name, value in before.items())


def test_what_has_not_changed_is_not_written_to():
    model = Holder()
    versions = [buffer._version for buffer in model.buffers()]
    put_buffers_back(keep_buffers(model))
    assert [buffer._version for buffer in model.buffers()] == versions
