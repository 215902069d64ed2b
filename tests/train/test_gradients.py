"""Clipping and dropping gradients in fewer calls than torch: the same bits, the same effect."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from tasuki.train.gradients import are_alike, clip_alike, drop, drops_plainly


def parameters_with_gradients(
    widths: list[int], *, dtype: torch.dtype, scale: float
) -> list[nn.Parameter]:
    torch.manual_seed(sum(widths))
    shapes = [(a, b) for a, b in pairwise(widths)] + [(w,) for w in widths]
    made = [nn.Parameter(torch.randn(shape, dtype=dtype)) for shape in shapes]
    for number, parameter in enumerate(made):
        if number % 4 != 3:  # not every parameter is used by every loss
            parameter.grad = torch.randn_like(parameter) * scale
    return made


def bits(tensor: Tensor) -> Tensor:
    return tensor.reshape(-1).view(torch.uint8)


def gradients(parameters: list[nn.Parameter]) -> list[Tensor | None]:
    return [p.grad for p in parameters]


@settings(max_examples=80, deadline=None)
@given(
    widths=st.lists(st.integers(1, 70), min_size=2, max_size=6),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
    scale=st.sampled_from([1e-3, 1.0, 1e3, float("nan"), float("inf")]),
    limit=st.sampled_from([0.1, 1.0, float("inf")]),
)
def test_gradients_are_clipped_to_the_bits_that_torch_gives(
    widths: list[int], dtype: torch.dtype, scale: float, limit: float
) -> None:
    ours = parameters_with_gradients(widths, dtype=dtype, scale=scale)
    torchs = parameters_with_gradients(widths, dtype=dtype, scale=scale)
    norms = clip_alike(ours, limit), nn.utils.clip_grad_norm_(torchs, limit)
    pairs = [norms, *zip(gradients(ours), gradients(torchs), strict=True)]
    for one, other in pairs:
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            assert one.dtype == other.dtype
            assert torch.equal(bits(one), bits(other))


def test_without_any_gradient_the_norm_is_zero() -> None:
    assert clip_alike([nn.Parameter(torch.ones(3))], 1.0) == 0.0


class Own(Tensor):
    """Of somebody's own making, such as a shard of a larger one."""


@pytest.mark.parametrize(
    "other",
    [
        torch.ones(2, dtype=torch.float64),
        torch.ones(2, device="meta"),
        torch.ones(2).as_subclass(Own),
    ],
    ids=["dtype", "device", "kind"],
)
def test_parameters_that_differ_are_left_to_torch(other: Tensor) -> None:
    plain = nn.Parameter(torch.ones(2))
    assert not are_alike([plain, other])
    assert are_alike([plain, torch.ones(3)])


def test_gradients_are_dropped_as_zero_grad_does_unless_an_optimizer_has_its_own_way() -> None:
    class Keeping(torch.optim.SGD):
        def zero_grad(self, set_to_none: bool = True) -> None:
            """Keeps them."""

    made = parameters_with_gradients([3, 4], dtype=torch.float32, scale=1.0)
    assert drops_plainly(torch.optim.AdamW(made))
    assert not drops_plainly(Keeping(made, lr=0.1))
    patched = torch.optim.SGD(made, lr=0.1)
    patched.zero_grad = lambda set_to_none=True: None
    assert not drops_plainly(patched)
    drop(made)
    assert gradients(made) == [None] * len(made)
