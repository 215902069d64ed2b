"""Gradient checkpointing: chosen modules compute anew, and nobody can tell from the numbers."""

from __future__ import annotations

import copy
import pickle
import random

import numpy as np
import pytest
import torch
from torch import nn

from tasuki.errors import RecipeError
from tasuki.spec.resolved import ResolvedStage
from tasuki.train.assemble import _recompute
from tasuki.train.recompute import find_blocks, recompute


class Block(nn.Module):
    """Dropout and BatchNorm: what a sloppy second pass draws and moves again."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.GELU(), nn.Dropout(0.3))
        self.passes = 0

    def forward(self, x, *, scale=1.0):
        self.passes += 1
        return x + scale * self.net(x)


class Stack(nn.Module):
    def __init__(self, depth: int = 4) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.blocks = nn.ModuleList(Block() for _ in range(depth))

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = block(x, scale=0.5)
        return x


def train(policy, *, steps=3):
    torch.manual_seed(0)
    model = Stack()
    recompute(model, policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    for _ in range(steps):
        loss = model(torch.randn(16, 8)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    return torch.tensor(losses), model


@pytest.mark.parametrize("policy", [True, 2, ["blocks.1"], ["blocks.?.net"]])
def test_losses_weights_and_running_means_are_bit_for_bit_those_without_it(policy):
    plain, without = train(False)
    losses, model = train(policy)
    assert torch.equal(plain, losses)
    for (name, a), b in zip(without.state_dict().items(), model.state_dict().values(), strict=True):
        assert torch.equal(a, b), name


@pytest.mark.parametrize(
    ("policy", "anew"),
    [(False, []), (True, [0, 1, 2, 3]), (2, [0, 2]), (["blocks.1", "blocks.3"], [1, 3])],
)
def test_the_policy_decides_which_blocks_compute_twice(policy, anew):
    _, model = train(policy, steps=1)
    assert [i for i, block in enumerate(model.blocks) if block.passes == 2] == anew


def test_activations_inside_chosen_blocks_are_not_kept():
    kept = {}
    for policy in (False, True):
        _, model = train(policy, steps=0)
        sizes = []

        def note(tensor, sizes=sizes):
            sizes.append(tensor.numel())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            model(torch.randn(16, 8))
        kept[policy] = sum(sizes)
    assert kept[True] < kept[False] / 3


def test_weights_keep_their_names_and_without_gradients_nothing_is_computed_twice():
    _, model = train(True, steps=0)
    assert model.state_dict().keys() == Stack().state_dict().keys()
    with torch.no_grad():
        model(torch.randn(4, 8))
    assert all(block.passes == 1 for block in model.blocks)


def test_the_outermost_repeated_parts_are_the_blocks():
    class Nested(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(Stack(2) for _ in range(3))
            self.head = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))

    assert find_blocks(Nested()) == ["layers.0", "layers.1", "layers.2"]


def test_a_model_without_blocks_is_told_to_name_its_modules():
    with pytest.raises(RecipeError, match="no repeated blocks") as caught:
        recompute(nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1)), True)
    assert "name the modules" in caught.value.hint


def test_a_module_that_is_not_there_is_answered_with_the_nearest():
    with pytest.raises(RecipeError, match=r"names `block\.1`") as caught:
        recompute(Stack(), ["block.1"])
    assert "nearest is `blocks.1`" in caught.value.hint


class Shared(nn.Module):
    """What blocks of real models do: norms that are used and moved, tables that all share, coins
    of Python's own."""

    def __init__(self, table: torch.Tensor | None = None, *, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.linear = nn.Linear(8, 8)
        if kind == "spectral":
            self.linear = nn.utils.parametrizations.spectral_norm(self.linear)
        self.inner = nn.Sequential(nn.Linear(8, 8), nn.Tanh())
        self.register_buffer("scale", torch.ones(1).expand(4) if kind == "expanded" else None)
        self.register_buffer("mean", torch.zeros(8))
        self.register_buffer("table", table)

    def forward(self, x):
        if self.kind == "running":
            self.mean.mul_(0.9).add_(0.1 * x.detach().mean(0))
            x = x - self.mean
        if self.kind == "coin" and random.random() + np.random.rand() < 1.0:
            x = x * 2
        if self.kind == "normal":  # numpy draws two, and the other waits for the next block
            x = x + np.random.randn() + random.gauss(0, 1)
        if self.table is not None:
            x = x * self.table
        return x + self.inner(self.linear(x))


def losses_of(kind, policy):
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    table = torch.linspace(0.5, 1.5, 8) if kind == "table" else None
    model = nn.Sequential(nn.Linear(8, 8), *(Shared(table, kind=kind) for _ in range(3)))
    recompute(model, policy)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    found = []
    for _ in range(4):
        loss = model(torch.randn(16, 8)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(float(loss.detach()))
    drawn = (random.gauss(0, 1), np.random.randn(), np.random.randn())
    return found, [v.clone() for v in model.state_dict().values()], drawn


@pytest.mark.parametrize("kind", ["spectral", "running", "coin", "normal", "table", "expanded"])
def test_what_blocks_of_real_models_do_changes_no_number(kind):
    plain, state, draw = losses_of(kind, False)
    losses, anew, drawn = losses_of(kind, True)
    assert losses == plain and draw == drawn
    assert all(torch.equal(a, b) for a, b in zip(state, anew, strict=True))


def test_a_copy_of_the_model_computes_with_its_own_weights():
    _, model = train(True, steps=1)
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.zero_()
    assert float(twin(torch.randn(4, 8)).abs().sum()) == 0.0
    assert float(model(torch.randn(4, 8)).abs().sum()) > 0.0
    assert pickle.loads(pickle.dumps(twin)).state_dict().keys() == model.state_dict().keys()


def test_a_period_beyond_the_number_of_blocks_warns_and_words_agree_with_their_number():
    said: list[str] = []
    model = nn.Sequential(*(nn.Sequential(nn.Linear(2, 2), nn.Tanh()) for _ in range(3)))
    stage = ResolvedStage(name="a", recipe="r:R", gradient_checkpointing=5)
    _recompute(model, stage, said.append)
    assert said[0].startswith("WARNING: `gradient_checkpointing: 5`: the model has 3 blocks")
    assert said[1] == "Gradient checkpointing: 0 keeps its inputs only"
