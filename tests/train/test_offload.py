"""The optimizer on the host: the same steps, and states that live there."""

from __future__ import annotations

import pytest
import torch
from tests.train.engines import make_engine, weights
from torch import nn

from tasuki.data.loader import MicroBatch
from tasuki.errors import RecipeError
from tasuki.spec.resolved import ResolvedStage
from tasuki.train.offload import OffloadedOptimizer
from tasuki.train.switches import in_force, without_gain

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
    engine = make_engine(model, loss, stepper, precision=precision)
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
        results.append(weights(model))
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
    expected = weights(model)
    model.load_state_dict(kept)
    optimizer.load_state_dict(states)
    stepper.refresh()
    step(engine, 2)
    assert torch.equal(expected, weights(model))


def run_both(build, loss, *, steps=6, hook=None):
    """The model's weights after some steps, with and without it."""
    results = []
    for is_offloaded in (False, True):
        torch.manual_seed(0)
        model = build()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
        if hook is not None:
            optimizer.register_step_post_hook(lambda *_, m=model: hook(m))
        stepper = OffloadedOptimizer(optimizer) if is_offloaded else optimizer
        engine = make_engine(model, loss, stepper, clip=None)
        for seed in range(steps):
            index = torch.randint(9, (6,), generator=torch.Generator().manual_seed(seed))
            engine.step([MicroBatch(index, 6)], 6)
        results.append(weights(model))
    return results


def test_weights_that_a_forward_pass_keeps_small_stay_so():
    results = run_both(
        lambda: nn.Embedding(9, 3, max_norm=0.5), lambda model, batch: model(batch).sum(1).mean()
    )
    assert torch.equal(*results)


def test_hooks_after_a_step_see_and_change_the_models_own_weights():
    def clamp(model):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.clamp_(-0.1, 0.1)

    results = run_both(
        lambda: nn.Embedding(9, 3), lambda model, batch: model(batch).sum(1).mean(), hook=clamp
    )
    assert torch.equal(*results)
    assert results[0].abs().max() <= 0.1


def test_an_optimizer_that_holds_parameters_beside_its_groups_is_refused():
    class Own(torch.optim.SGD):
        def __init__(self, parameters) -> None:
            self.mine = list(parameters)
            super().__init__(self.mine, lr=0.1)

    with pytest.raises(RecipeError, match="in a list of its own, `mine`"):
        OffloadedOptimizer(Own(nn.Linear(2, 1).parameters()))


def test_what_is_in_force_is_one_line_and_what_gains_nothing_a_warning():
    stage = ResolvedStage(name="a", recipe="r:R", precision="bf16", compile=True, offload=True)
    assert in_force(stage, device="cuda") == "Computing in bf16; compiled; optimizer on the host"
    assert without_gain(stage, device="cuda") == []
    assert "`offload: true` gains nothing" in without_gain(stage, device="cpu")[0]
    plain = ResolvedStage(name="a", recipe="r:R", precision="tf32")
    assert in_force(plain, device="cpu") == "Computing in fp32"
    assert without_gain(plain, device="cpu") == []
