"""The effective batch is sacred (promise 8): however a step is split, the gradient is the same."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.train.engines import make_engine, weights
from torch import nn

from tasuki.data.loader import MicroBatch
from tasuki.errors import RecipeError
from tasuki.train.losses import read_loss
from tasuki.train.rows import numbers

X = torch.randn(12, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
Y = X.sum(1, keepdim=True)


def mean_loss(model, batch):
    x, y = batch
    return nn.functional.mse_loss(model(x), y)


def weighted_loss(model, batch):
    x, y = batch
    weights = 1.0 + x[:, :1].abs()
    return (weights * (model(x) - y) ** 2).sum(), float(weights.sum())


def weights_after_a_step(loss, cuts, *, clip=None):
    torch.manual_seed(1)
    model = nn.Linear(5, 1, dtype=torch.float64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    engine = make_engine(model, loss, optimizer, clip=clip)
    edges = [0, *cuts, len(X)]
    batches = [MicroBatch((X[a:b], Y[a:b]), b - a) for a, b in pairwise(edges)]
    engine.step(iter(batches), len(X))
    return weights(model), engine


@settings(max_examples=60, deadline=None)
@given(st.sets(st.integers(1, 11)), st.sampled_from([mean_loss, weighted_loss]))
def test_any_split_into_micro_batches_gives_the_same_step(cuts, loss):
    whole, _ = weights_after_a_step(loss, [])
    split, _ = weights_after_a_step(loss, sorted(cuts))
    assert torch.allclose(whole, split, rtol=1e-12, atol=1e-14)


def test_one_micro_batch_is_back_propagated_as_it_is():
    torch.manual_seed(1)
    model = nn.Linear(5, 1, dtype=torch.float64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    mean_loss(model, (X, Y)).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    ours, _ = weights_after_a_step(mean_loss, [], clip=1.0)
    assert torch.equal(weights(model), ours)


def test_the_logged_loss_is_the_mean_over_all_samples_however_they_were_split():
    for loss in (mean_loss, weighted_loss):
        sums = []
        for cuts in ([], [3, 4, 9]):
            _, engine = weights_after_a_step(loss, cuts)
            total, weight = engine.read_losses()
            sums.append(total / weight)
        assert math.isclose(*sums, rel_tol=1e-12)


def test_a_step_without_any_weight_changes_nothing():
    def masked(model, batch):
        return (model(batch[0]) * 0).sum() + model(batch[0]).sum(), 0.0

    torch.manual_seed(1)
    start = weights(nn.Linear(5, 1, dtype=torch.float64))
    for cuts in ([], [5]):
        after, _ = weights_after_a_step(masked, cuts)
        assert torch.equal(start, after)


@pytest.mark.parametrize(("precision", "is_weighted"), [("fp32", False), ("fp16", True)])
def test_a_step_that_uses_no_trained_parameter_leaves_all_of_them_alone(precision, is_weighted):
    model = nn.ModuleDict({"frozen": nn.Linear(5, 1), "trained": nn.Linear(5, 1)})
    optimizer = torch.optim.SGD(model["trained"].parameters(), lr=0.1)

    def loss(model, batch):
        x, name = batch
        out = model[name](x).float() / 1000
        return (out.sum(), float(len(x))) if is_weighted else out.mean()

    engine = make_engine(model, loss, optimizer, precision=precision)
    before = model["trained"].weight.detach().clone()
    for name in ("frozen", "trained"):
        assert torch.equal(before, model["trained"].weight)
        parts = [MicroBatch((x.float(), name), len(x)) for x in X.split(6)]
        assert engine.step(iter(parts), len(X))
    assert not torch.equal(before, model["trained"].weight)


def test_groups_of_parameters_that_come_in_mid_stage_are_refused_in_words():
    model = nn.ModuleList([nn.Linear(5, 1), nn.Linear(5, 1)]).double()
    optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1)
    engine = make_engine(model, lambda model, x: (model[0](x) + model[1](x)).mean(), optimizer)
    engine.step(iter([MicroBatch(X, len(X))]), len(X))
    optimizer.add_param_group({"params": list(model[1].parameters())})
    with pytest.raises(RecipeError, match="other groups of parameters"):
        engine.step(iter([MicroBatch(X, len(X))]), len(X))


def test_scalars_of_a_loss_are_kept_for_the_log():
    def loss(model, batch):
        return mean_loss(model, batch) * len(batch[0]), float(len(batch[0])), {"mae": 3.0}

    _, engine = weights_after_a_step(loss, [])
    assert engine.scalars == {"mae": 3.0}


@pytest.mark.parametrize("output", [None, 1.0, (1.0, 2), (torch.ones(1), 2, {}, 3)])
def test_a_loss_that_is_neither_a_mean_nor_a_sum_with_weight_is_refused_in_words(output):
    with pytest.raises(RecipeError) as caught:
        read_loss(output)
    assert "(sum, weight)" in caught.value.hint


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (lambda found: found.square(), r"of shape \[4, 1\]"),
        (lambda found: (found.square(), 4), r"of shape \[4, 1\]"),
        (lambda found: found.mean().detach(), "no parameter of the model has a part in"),
        (lambda found: (found.sum(), None), "weight that loss gave is no number but a NoneType"),
        (lambda found: (found.sum(), torch.ones(4)), "is no number but a Tensor"),
        (lambda found: (found.sum(), -4), "the weight that loss gave is -4.0"),
        (lambda found: (found.sum(), torch.tensor(torch.inf)), "the weight that loss gave is inf"),
        (lambda found: (found.sum(), 4, [1.0]), "loss gave a list to be logged"),
    ],
)
def test_a_loss_without_a_gradient_or_a_weight_that_is_none_is_refused_in_words(loss, words):
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    engine = make_engine(model, lambda model, batch: loss(model(batch)), optimizer)
    with pytest.raises(RecipeError, match=words):
        engine.step([MicroBatch(torch.ones(4, 2), 4)], 4)


def test_unread_losses_are_folded_so_that_they_never_pile_up():
    _, engine = weights_after_a_step(mean_loss, [])
    for _ in range(10_000):
        engine.window.begin_step()
        engine.window.add(torch.tensor(2.0), 1.0)
    assert len(engine.window.entries) <= 256
    engine.window.entries[:] = []
    for _ in range(1000):
        engine.window.add(torch.tensor(2.0), 1.0)
    assert engine.read_losses() == (2000.0, 1000.0)


@pytest.mark.parametrize("clip", [1.0, None])
def test_a_sparse_gradient_is_used_or_refused_in_words(clip):
    model = nn.Embedding(4, 2, sparse=True)
    before = model.weight.detach().clone()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    engine = make_engine(model, lambda m, batch: m(batch).sum(), optimizer, clip=clip)
    batch = iter([MicroBatch(torch.tensor([1, 2]), 2)])
    if clip is None:
        engine.step(batch, 2)
        assert not torch.equal(before[1:3], model.weight[1:3])
        assert torch.equal(before[[0, 3]], model.weight[[0, 3]])
    else:
        with pytest.raises(RecipeError, match="sparse"):
            engine.step(batch, 2)


def test_numbers_and_tensors_of_one_element_are_logged():
    assert numbers({"acc": torch.tensor(0.5), "n": 3}) == {"acc": 0.5, "n": 3.0}


@pytest.mark.parametrize("value", ["x", torch.ones(3), None])
def test_what_is_no_number_is_named(value):
    with pytest.raises(RecipeError, match="`acc` to be logged, which is no number"):
        numbers({"acc": value})


@pytest.mark.parametrize("name", ["loss", "t", "step", "overflows"])
def test_a_name_that_a_line_has_already_is_refused(name):
    with pytest.raises(RecipeError, match=f"called `{name}`"):
        numbers({name: 1.0})
