"""The optimizer on the host: the same steps, and states that live there."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tasuki.data.loader import MicroBatch
from tasuki.train.engine import LossModule, StepEngine
from tasuki.train.offload import OffloadedOptimizer

KINDS = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),  # has states before its first step
}


def loss(model, batch):
    return model(batch).square().mean()


def make(kind, *, is_offloaded, precision="fp32"):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 1))
    optimizer = KINDS[kind](model.parameters())
    stepper = OffloadedOptimizer(optimizer) if is_offloaded else optimizer
    engine = StepEngine(
        LossModule(model, loss),
        stepper,
        device=torch.device("cpu"),
        clip=1.0,
        world=1,
        precision=precision,
    )
    return model, optimizer, stepper, engine


def step(engine, seed):
    x = torch.randn(6, 5, generator=torch.Generator().manual_seed(seed))
    engine.step([MicroBatch(x[:4], 4), MicroBatch(x[4:], 2)], 6)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("kind", KINDS)
def test_steps_are_bit_for_bit_those_without_it(kind, precision):
    results = []
    for is_offloaded in (False, True):
        model, _, _, engine = make(kind, is_offloaded=is_offloaded, precision=precision)
        for seed in range(4):
            step(engine, seed)
        results.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
        assert all(p.grad is None for p in model.parameters())
    assert torch.equal(*results)


def test_the_optimizer_works_on_copies_of_its_own():
    model, optimizer, _, engine = make("adamw", is_offloaded=True)
    own = {p.data_ptr() for p in model.parameters()}
    step(engine, 0)
    held = {p.data_ptr() for group in optimizer.param_groups for p in group["params"]}
    assert not own & held
    assert len(optimizer.state_dict()["state"]) == 4


def test_after_a_restore_it_goes_on_from_the_models_weights():
    model, optimizer, stepper, engine = make("adamw", is_offloaded=True)
    for seed in range(2):
        step(engine, seed)
    kept = {k: v.clone() for k, v in model.state_dict().items()}
    states = torch.utils._pytree.tree_map(
        lambda v: v.clone() if isinstance(v, torch.Tensor) else v, optimizer.state_dict()
    )
    step(engine, 2)
    expected = torch.cat([p.detach().flatten() for p in model.parameters()])
    model.load_state_dict(kept)
    optimizer.load_state_dict(states)
    stepper.refresh()
    step(engine, 2)
    assert torch.equal(expected, torch.cat([p.detach().flatten() for p in model.parameters()]))
