"""Operations whose result depends on numbers are taken at their largest, and counted."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional

from tasuki.memory.bounded import Bounds, Untraceable
from tasuki.memory.tracker import Tracker


@pytest.fixture
def bounds():
    found = Bounds()
    with FakeTensorMode(), Tracker(bounds=found):
        yield found


def test_what_a_mask_selects_could_be_everything(bounds):
    x = torch.ones(3, 4, requires_grad=True)
    kept = x[x > 0]
    kept.sum().backward()
    assert kept.shape == (12,)
    assert x.grad.shape == x.shape
    assert torch.masked_select(x, x > 0).shape == (12,)
    assert (x > 0).nonzero().shape == (12, 2)
    assert torch.where(x > 0)[0].shape == (12,)
    assert bounds.counts == {"index": 1, "masked_select": 1, "nonzero": 2}
    assert bounds.in_words() == [
        "results that depend on the data are taken at their largest: index, masked_select, nonzero"
    ]


def test_all_numbers_could_be_different(bounds):
    x = torch.ones(3, 4)
    values, inverse, counts = x.unique(return_inverse=True, return_counts=True)
    assert (values.shape, inverse.shape, counts.shape) == ((12,), (3, 4), (12,))
    assert x.unique(dim=0).shape == (3, 4)
    assert torch.unique_consecutive(x).shape == (12,)


def test_numbers_that_are_read_are_1_and_that_is_told(bounds):
    assert torch.zeros(1).item() == 1.0
    assert bool(torch.zeros(1) > 2)
    assert "reads numbers" in bounds.in_words()[0]


def test_what_has_no_bound_is_refused_by_name(bounds):
    with pytest.raises(Untraceable, match="`bincount`"):
        torch.bincount(torch.randint(9, (3,)))
    assert torch.bincount(torch.randint(9, (3,)), minlength=5).shape == (5,)
    with pytest.raises(Untraceable, match="`repeat_interleave`"):
        torch.zeros(3).repeat_interleave(torch.randint(9, (3,)))


def test_whole_numbers_that_come_from_no_weight_are_known(bounds):
    lengths = torch.arange(5) * 2
    assert int(lengths.max()) == 8
    assert not bool((lengths > 8).any())
    assert torch.bincount(lengths).shape == (9,)
    assert torch.zeros(5, 2).repeat_interleave(lengths, 0).shape == (20, 2)
    assert "reads numbers from the batch" in bounds.in_words()[0]


def test_numbers_are_unknown_again_once_something_unknown_is_written_over_them(bounds):
    lengths = torch.arange(5)
    part = lengths[2:]
    lengths[0] = 7
    assert int(lengths.max()) == 7
    part.copy_(torch.randint(9, (3,)))
    assert int(lengths.max()) == 1  # as all that nobody knows


@pytest.mark.parametrize(
    ("loss", "reduction"),
    [
        (functional.mse_loss, "none"),
        (functional.smooth_l1_loss, "mean"),
        (functional.soft_margin_loss, "sum"),
    ],
)
def test_a_loss_keeps_the_memory_in_which_it_was_summed_up(loss, reduction):
    real = loss(torch.zeros(3, 4), torch.ones(3, 4), reduction=reduction)
    with FakeTensorMode(), Tracker(bounds=Bounds()):
        fake = loss(torch.zeros(3, 4), torch.ones(3, 4), reduction=reduction)
    assert fake.shape == real.shape
    assert fake.untyped_storage().nbytes() == real.untyped_storage().nbytes()


def test_what_numbers_alone_could_compare_is_taken_as_close(bounds):
    assert torch.allclose(torch.zeros(3), torch.ones(3))
    assert torch.zeros(4).index_fill(0, torch.randint(4, (2,)), 1.0).shape == (4,)


def test_a_copy_equals_its_original_until_one_is_written(bounds):
    norm = nn.BatchNorm1d(4)
    mean = norm.running_mean.clone()
    other = norm.weight.detach().clone()
    assert torch.equal(norm.running_mean, mean)
    norm(torch.ones(3, 4))
    assert not torch.equal(norm.running_mean, mean)  # its schema does not say that it is written
    assert torch.equal(norm.weight, other)
    other.add_(1)
    assert not torch.equal(norm.weight, other)
