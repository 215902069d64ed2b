"""The states that training really has: optimizers, schedulers, scalers, random generators."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tests.unit.checkpoint.commits import same
from torch import nn, optim
from torch.optim import lr_scheduler as lr

from tasuki.checkpoint.codec import decode, encode, first_difference

P = list[nn.Parameter]
OPTIMIZERS: dict[str, Callable[[P], optim.Optimizer]] = {
    "ASGD": optim.ASGD,
    "Adadelta": optim.Adadelta,
    "Adafactor": optim.Adafactor,
    "Adagrad": optim.Adagrad,
    "Adam": lambda p: optim.Adam(p, betas=(0.9, 0.99)),
    "Adam amsgrad foreach": lambda p: optim.Adam(p, amsgrad=True, foreach=True),
    "Adam lr tensor": lambda p: optim.Adam(p, lr=torch.tensor(1e-3), foreach=False),
    "AdamW": optim.AdamW,
    "AdamW fused amsgrad": lambda p: optim.AdamW(p, fused=True, amsgrad=True),
    "AdamW groups": lambda p: optim.AdamW([{"params": p[:1], "lr": 0.5}, {"params": p[1:]}]),
    "Adamax": optim.Adamax,
    "LBFGS": lambda p: optim.LBFGS(p, history_size=3, line_search_fn="strong_wolfe"),
    "Muon": lambda p: optim.Muon([q for q in p if q.ndim == 2]),
    "NAdam": lambda p: optim.NAdam(p, decoupled_weight_decay=True),
    "RAdam": lambda p: optim.RAdam(p, foreach=True),
    "RMSprop": lambda p: optim.RMSprop(p, centered=True, momentum=0.9),
    "Rprop": optim.Rprop,
    "SGD momentum nesterov": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "SGD fused": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, fused=True),
}
SCHEDULERS: dict[str, Callable[[optim.Optimizer], Any]] = {
    "LambdaLR": lambda o: lr.LambdaLR(o, lambda s: 0.9**s),
    "MultiplicativeLR": lambda o: lr.MultiplicativeLR(o, lambda s: 0.9),
    "StepLR": lambda o: lr.StepLR(o, 2),
    "MultiStepLR": lambda o: lr.MultiStepLR(o, [1, 3, 3]),
    "ConstantLR": lr.ConstantLR,
    "LinearLR": lr.LinearLR,
    "ExponentialLR": lambda o: lr.ExponentialLR(o, 0.9),
    "PolynomialLR": lr.PolynomialLR,
    "CosineAnnealingLR": lambda o: lr.CosineAnnealingLR(o, 10),
    "CosineAnnealingWarmRestarts": lambda o: lr.CosineAnnealingWarmRestarts(o, 3),
    "CyclicLR": lambda o: lr.CyclicLR(o, 0.01, 0.1),
    "OneCycleLR": lambda o: lr.OneCycleLR(o, 0.1, total_steps=10, cycle_momentum=False),
    "ReduceLROnPlateau": lr.ReduceLROnPlateau,
    "SequentialLR": lambda o: lr.SequentialLR(
        o, [lr.ConstantLR(o), lr.ExponentialLR(o, 0.9)], milestones=[2]
    ),
    "ChainedScheduler": lambda o: lr.ChainedScheduler(
        [lr.ConstantLR(o), lr.ExponentialLR(o, 0.9)], o
    ),
}
NOT_FOR_DENSE_GRADIENTS = {"Optimizer", "SparseAdam"}


def round_trip(state):
    encoded = encode(state)
    return decode(json.loads(json.dumps(encoded.tree, allow_nan=False)), encoded.tensors)


def small_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))


def step(model, optimizer):
    def closure():
        optimizer.zero_grad()
        loss = model(torch.linspace(-1, 1, 20).reshape(5, 4)).square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_goes_on_bit_by_bit_from_its_stored_state(name):
    model, twin = small_model(), small_model()
    optimizer = OPTIMIZERS[name](list(model.parameters()))
    for _ in range(2):
        step(model, optimizer)
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    back = round_trip(state)
    assert same(back, state)
    twin.load_state_dict(back["model"])
    resumed = OPTIMIZERS[name](list(twin.parameters()))
    resumed.load_state_dict(back["optimizer"])
    step(model, optimizer)
    step(twin, resumed)
    assert first_difference(model.state_dict(), twin.state_dict()) is None
    assert first_difference(optimizer.state_dict(), resumed.state_dict()) is None


@pytest.mark.parametrize("name", SCHEDULERS)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_scheduler_goes_on_from_its_stored_state(name):
    def make():
        optimizer = optim.SGD(small_model().parameters(), lr=0.1, momentum=0.9)
        return optimizer, SCHEDULERS[name](optimizer)

    arguments = (1.0,) if name == "ReduceLROnPlateau" else ()
    optimizer, scheduler = make()
    fresh = scheduler.state_dict()  # ReduceLROnPlateau's best is inf here
    assert same(round_trip(fresh), fresh)
    for _ in range(3):
        scheduler.step(*arguments)
    state = {"scheduler": scheduler.state_dict(), "optimizer": optimizer.state_dict()}
    back = round_trip(state)
    assert same(back, state)
    other, resumed = make()
    other.load_state_dict(back["optimizer"])
    resumed.load_state_dict(back["scheduler"])
    for _ in range(3):
        scheduler.step(*arguments)
        resumed.step(*arguments)
        assert other.param_groups[0]["lr"] == optimizer.param_groups[0]["lr"]


def test_no_optimizer_and_no_scheduler_of_torch_is_forgotten():
    for module, base, known, others in (
        (optim, optim.Optimizer, OPTIMIZERS, NOT_FOR_DENSE_GRADIENTS),
        (lr, lr.LRScheduler, SCHEDULERS, {"LRScheduler", "_LRScheduler"}),
    ):
        found = {name: one for name, one in vars(module).items() if isinstance(one, type)}
        names = {name for name, one in found.items() if issubclass(one, base)}
        assert names <= {name.split()[0] for name in known} | others


def test_scaler_and_random_generators_go_on_where_they_were():
    torch.manual_seed(3)
    np.random.seed(3)
    random.seed(3)
    random.gauss(0, 1)
    generator = np.random.default_rng(3)
    state = {
        "scaler": torch.amp.GradScaler("cpu").state_dict(),
        "torch": torch.get_rng_state(),
        "numpy": np.random.get_state(),
        "generator": generator.bit_generator.state,
        "python": random.getstate(),
    }
    back = round_trip(state)
    assert same(back, state)
    torch.set_rng_state(back["torch"])
    np.random.set_state(back["numpy"])
    random.setstate(back["python"])
    again = (torch.rand(3).tolist(), np.random.rand(3).tolist(), random.gauss(0, 1))
    torch.set_rng_state(state["torch"])
    np.random.set_state(state["numpy"])
    random.setstate(state["python"])
    assert again == (torch.rand(3).tolist(), np.random.rand(3).tolist(), random.gauss(0, 1))
