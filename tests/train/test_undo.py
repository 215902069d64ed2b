"""A step that runs out of memory leaves everything as it was."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from tests.faults.test_nan import all_state
from torch import nn

from tasuki.data.loader import MicroBatch
from tasuki.testing import memory_cap
from tasuki.train.engine import LossModule, StepEngine
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


def make() -> tuple[StepEngine, nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    model = Drawing()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    engine = StepEngine(
        LossModule(model, mean), optimizer, device=torch.device("cpu"), clip=1.0, world=1
    )
    engine.undo = Undo(model, torch.device("cpu"))
    return engine, model, optimizer


def states() -> tuple[object, ...]:
    numpy = np.random.get_state()
    return random.getstate(), numpy[1].tolist(), numpy[2], torch.get_rng_state().tolist()


def steps(engine: StepEngine, sizes: list[int], *, samples: int = 64) -> None:
    data = torch.linspace(-1, 1, samples * 4).reshape(samples, 4)
    parts = [MicroBatch(part, len(part)) for part in data.split(sizes)]
    engine.step(iter(parts), samples)


@pytest.mark.parametrize("num_before", [0, 1, 2, 5])
@pytest.mark.parametrize("sizes", [[64], [16, 48], [8, 8, 48]])
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
    after = all_state(model, optimizer)
    assert len(after) == len(before)
    assert all(torch.equal(x, y) for x, y in zip(before, after, strict=True))
    assert states() == random_before
    assert model.seen is seen
    assert all(p.grad is None for p in model.parameters())
    assert engine.window.entries == window
    # And so the next step is that of a run in which nothing happened.
    steps(engine, [16, 16, 16, 16])
    other, twin, twins = make()
    for _ in range(num_before + 1):
        steps(other, [16, 16, 16, 16])
    pairs = zip(all_state(model, optimizer), all_state(twin, twins), strict=True)
    assert all(torch.equal(x, y) for x, y in pairs)


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


def test_buffers_larger_than_64_mb_are_not_copied_and_not_called_undone():
    model = nn.Linear(4, 1)
    model.register_buffer("huge", torch.zeros(17 << 20))
    undo = Undo(model, torch.device("cpu"))
    for _ in range(3):
        undo.begin()
    assert not undo._moving and not undo._still
    assert not undo.put_back()


def test_an_engine_that_was_not_asked_to_undo_raises_torchs_own_error():
    engine, _, _ = make()
    engine.undo = None
    with memory_cap("16K"), pytest.raises(torch.OutOfMemoryError):
        steps(engine, [64])
