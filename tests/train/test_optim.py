"""Defaults that people can rely on: AdamW, and a schedule that is a pure function of the step."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tasuki.errors import RecipeError
from tasuki.train.optim import PureSchedule, default_optimizer, schedule_factor, warmup_steps


def rates(kind, total, warmup):
    factor = schedule_factor(kind, total=total, warmup=warmup)
    return [factor(step) for step in range(total)]


@pytest.mark.parametrize("total", [40, 100, 1000])
def test_the_default_schedule_is_torchs_onecycle_with_a_tenth_of_warm_up(total):
    model = nn.Linear(2, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    theirs = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=0.01, total_steps=total, pct_start=0.1, cycle_momentum=False
    )
    expected = []
    for _ in range(total):
        expected.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        theirs.step() if theirs.last_epoch < total - 1 else None
    ours = [0.01 * factor for factor in rates("onecycle", total, warmup_steps(None, total))]
    assert ours == pytest.approx(expected, rel=1e-9)


@settings(max_examples=80, deadline=None)
@given(
    st.sampled_from(["onecycle", "cosine", "linear", "constant", "wsd"]),
    st.integers(1, 400),
    st.floats(0, 1),
)
def test_every_schedule_stays_between_zero_and_the_base_rate(kind, total, warmup):
    factors = rates(kind, total, warmup_steps(warmup, total))
    assert all(0 <= factor <= 1 + 1e-12 for factor in factors)
    assert max(factors) > 0


def test_seeking_costs_nothing_because_the_rate_depends_on_the_step_alone():
    optimizer = torch.optim.SGD(nn.Linear(2, 1).parameters(), lr=0.5)
    schedule = PureSchedule(optimizer, schedule_factor("cosine", total=100, warmup=10))
    seen = {}
    for step in [99, 3, 50, 3]:
        schedule.set_for(step)
        seen.setdefault(step, set()).add(optimizer.param_groups[0]["lr"])
    assert all(len(values) == 1 for values in seen.values())


def test_a_schedule_goes_on_after_the_optimizers_state_was_loaded():
    optimizer = torch.optim.SGD(nn.Linear(2, 1).parameters(), lr=0.5)
    schedule = PureSchedule(optimizer, schedule_factor("linear", total=10, warmup=0))
    schedule.set_for(5)
    optimizer.load_state_dict(optimizer.state_dict())  # replaces the parameter groups
    schedule.set_for(9)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.05)


def test_a_model_without_anything_to_train_is_refused_in_words():
    model = nn.Linear(2, 1).requires_grad_(False)
    with pytest.raises(RecipeError, match="no parameter that can be trained"):
        default_optimizer(model, lr=1e-3, weight_decay=0.0)


def test_frozen_parameters_are_left_out_of_the_optimizer():
    model = nn.Sequential(nn.Linear(2, 2).requires_grad_(False), nn.Linear(2, 1))
    optimizer = default_optimizer(model, lr=1e-3, weight_decay=0.0)
    assert len(optimizer.param_groups[0]["params"]) == 2
