"""`first_difference` names the first place where two states are not the same bits."""

from __future__ import annotations

import struct
from collections import defaultdict
from typing import Any

import numpy as np
import pytest
import torch

from tasuki.checkpoint.codec import first_difference
from tasuki.errors import StateNotStorable

(ODD_NAN,) = struct.unpack(">d", bytes.fromhex("7ff8000000000001"))


@pytest.mark.parametrize(
    ("a", "b", "words"),
    [
        ({"a": 1}, {"a": 2}, "a: 1 and 2"),
        ({"a": 1}, {"a": True}, "a: a int and a bool"),
        ({"a": 1}, {"a": 1.0}, "a: a int and a float"),
        ({"a": 0.0}, {"a": -0.0}, "a: 0.0 and -0.0"),
        ({"a": float("nan")}, {"a": ODD_NAN}, "a: nan and nan"),
        ({1: 0}, {True: 0}, "state[1]: only in the first"),
        ({}, {"x": 0}, "x: only in the second"),
        ({"a": (1,)}, {"a": [1]}, "a: a tuple and a list"),
        ({"a": [1, 2]}, {"a": [1]}, "a: 2 and 1 items"),
        ({"a": defaultdict(list)}, {"a": defaultdict(int)}, "factories"),
        ({"o": {"s": {3: {"m": torch.ones(2)}}}}, {"o": {"s": {3: {"m": torch.ones(3)}}}},
         "o.s[3]['m']: shapes [2] and [3]"),
        ([torch.ones(2)], [torch.ones(2).double()], "state[0]: dtypes"),
        ([torch.tensor([1.0, 2.0, 3.0])], [torch.tensor([1.0, 2.5, 3.25])],
         "2 of 3 elements differ, largest absolute difference 0.5 (2.0 and 2.5)"),
        ([torch.tensor([1.0, float("nan")])], [torch.tensor([1.0, 2.0])],
         "1 of 2 elements differ, by NaN"),
        ([torch.tensor([0.0])], [torch.tensor([-0.0])], "bits only"),
        ([torch.ones(2).to(torch.float8_e5m2)], [torch.zeros(2).to(torch.float8_e5m2)],
         "difference 1"),
        ([np.ones(2)], [np.zeros(2)], "difference 1"),
        ([np.ones(2, ">f4")], [np.zeros(2, ">f4")], "difference 1"),
        ([np.float32(1)], [np.float64(1)], "a float32 and a float64"),
        ([np.ones(2)], [torch.ones(2)], "a ndarray and a Tensor"),
    ],
)  # fmt: skip
def test_a_difference_is_named_with_place_and_size(a: Any, b: Any, words: str) -> None:
    found = first_difference(a, b)
    assert found is not None
    assert words in found
    assert first_difference(b, a) is not None


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ({"a": float("nan"), "b": 2}, {"b": 2, "a": float("nan")}),
        ([torch.tensor([float("nan")])], [torch.tensor([float("nan")])]),
        ([torch.arange(6.0).reshape(2, 3).t()], [torch.arange(6.0).reshape(2, 3).t().contiguous()]),
        ([torch.nn.Parameter(torch.ones(2))], [torch.ones(2)]),
        ([torch.zeros(0, 3), np.zeros((0, 2))], [torch.zeros(0, 3), np.zeros((0, 2))]),
        ([torch.arange(4.0)[1:2:2]], [torch.ones(1)]),
        ([torch.tensor([1 + 2j]).conj()], [torch.tensor([1 - 2j])]),
    ],
)  # fmt: skip
def test_what_has_no_influence_on_numbers_is_no_difference(a: Any, b: Any) -> None:
    assert first_difference(a, b) is None


def test_what_cannot_be_stored_cannot_be_compared() -> None:
    with pytest.raises(StateNotStorable, match=r"x\.y"):
        first_difference({"x": {"y": {1}}}, {"x": {"y": {1}}})
