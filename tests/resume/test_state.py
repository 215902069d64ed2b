"""What is captured comes back exactly, or is refused at once."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from tests.harness.project import make_project
from torch import nn

from tasuki.checkpoint.codec import first_difference
from tasuki.checkpoint.parts import read_part, write_part
from tasuki.errors import CheckpointError, StateNotStorable
from tasuki.loop.state import Tracked, capture, capture_random, restore, restore_random
from tasuki.runs.claims import list_claims


class Odd(nn.Module):
    """Buffers that `state_dict` leaves out, that grow, and that are filled when they are needed:
    caches of rotary embeddings do all of that."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.register_buffer("count", torch.zeros(()), persistent=False)
        self.register_buffer("cache", torch.zeros(1), persistent=False)
        self.register_buffer("memory", None)
        self.register_buffer("ones", torch.ones(1).expand(4), persistent=False)

    def forward(self, x):
        self.count += 1
        self.cache = torch.cat([self.cache, self.cache[-1:] + 1])
        self.memory = x.detach().mean().reshape(1) if self.memory is None else self.memory * 0.9
        return self.linear(x)


def train(model, optimizer, steps):
    for _ in range(steps):
        model(torch.randn(4, 3, dtype=next(model.parameters()).dtype)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def make(dtype=torch.float32):
    model = Odd().to(dtype)
    return Tracked(model, torch.optim.AdamW(model.parameters()), None)


def through_files(tmp_path, state):
    write_part(tmp_path, 0, state)
    return read_part(tmp_path, 0)


def test_buffers_that_state_dict_leaves_out_grow_or_are_filled_later_come_back(tmp_path):
    tracked = make()
    train(tracked.model, tracked.optimizer, 3)
    saved = through_files(tmp_path, capture(tracked))
    fresh = make()
    restore(fresh, saved)
    assert float(fresh.model.count) == 3.0 and fresh.model.cache.tolist() == [0, 1, 2, 3]
    assert torch.equal(fresh.model.memory, tracked.model.memory)
    assert first_difference(saved, capture(fresh)) is None


def test_momentum_of_another_dtype_than_its_parameter_is_not_cast(tmp_path):
    tracked = make(torch.bfloat16)
    train(tracked.model, tracked.optimizer, 2)
    for state in tracked.optimizer.state.values():
        state["exp_avg"] = state["exp_avg"].float() + 1e-6
    saved = through_files(tmp_path, capture(tracked))
    fresh = make(torch.bfloat16)
    restore(fresh, saved)
    dtypes = {state["exp_avg"].dtype for state in fresh.optimizer.state.values()}
    assert dtypes == {torch.float32}
    assert first_difference(saved, capture(fresh)) is None


def test_a_schedule_that_loses_state_is_refused_when_it_is_first_restored(tmp_path):
    class Forgetful:
        def __init__(self):
            self.seen = 0

        def state_dict(self):
            return {"seen": self.seen}

        def load_state_dict(self, state):
            pass

    tracked = make()
    schedule = Forgetful()
    schedule.seen = 7
    saved = capture(Tracked(tracked.model, tracked.optimizer, schedule))
    saved = through_files(tmp_path, saved)
    with pytest.raises(CheckpointError, match="schedule"):
        restore(Tracked(tracked.model, tracked.optimizer, Forgetful()), saved)


def test_a_schedule_that_takes_entries_out_of_its_state_comes_back():
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    kinds = torch.optim.lr_scheduler
    cycle = kinds.CyclicLR(optimizer, 0.1, 0.2, cycle_momentum=False)
    tracked = Tracked(model, optimizer, kinds.ChainedScheduler([cycle]))
    restore(tracked, capture(tracked))


def test_parameter_groups_that_a_resume_would_not_have_are_refused_when_they_are_saved():
    tracked = make()
    capture(tracked)
    tracked.optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(2))]})
    with pytest.raises(StateNotStorable, match="further parameter groups"):
        capture(tracked)


def test_random_numbers_go_on_where_they_stopped(tmp_path):
    def draw():
        return random.random(), np.random.rand(), torch.rand(1).item(), random.gauss(0, 1)

    draw()
    saved = through_files(tmp_path, capture_random())
    expected = [draw() for _ in range(3)]
    draw()
    restore_random(saved)
    assert [draw() for _ in range(3)] == expected


OUTSIDE = '''
class Outside(Learner):
    """A head that the optimizer trains and the model does not own."""

    def build_optimizer(self, model):
        self.head = nn.Linear(1, 1)
        return torch.optim.SGD([*model.parameters(), *self.head.parameters()], lr=0.01)
'''


def test_a_parameter_that_is_trained_but_in_no_checkpoint_is_refused_at_once(warm, tmp_path):
    project = make_project(tmp_path / "p", recipe="Outside", code=OUTSIDE)
    assert warm.start(project.job.path).wait() == 1
    assert "state_dict does not hold: a resume would lose it" in project.logs()
    assert list_claims(project.run) == [1], "a mistake is not tried again"
