"""Losses of several micro-batches of one step, and what recipes log beside them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tasuki.data.loader import MicroBatch
from tasuki.errors import RecipeError
from tasuki.train.engine import LossModule, StepEngine


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
