"""The bytes of a sample: those of everything in it that becomes a tensor, however it is nested."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pytest
import torch

from tasuki.train.leaves import leaves_of


class Pair(NamedTuple):
    x: torch.Tensor
    y: int


@dataclass
class Graph:
    nodes: torch.Tensor
    name: None = None


class Dictable:
    """As torch_geometric's Data: what it holds is not in its own attributes."""

    def to_dict(self):
        return {"x": np.zeros((2, 3), "f4"), "num": None}


SPARSE = torch.eye(5).to_sparse()

SAMPLES = [
    (torch.zeros(3, 4), {"sample": 48}),
    (np.zeros(5, "u2"), {"sample": 10}),
    (7, {"sample": 8}),
    ((torch.zeros(2), 1.5), {"0": 8, "1": 8}),
    ({"a": torch.zeros(2, dtype=torch.bool), "b": {"c": np.float32(1)}}, {"a": 2, "b.c": 4}),
    (Pair(torch.zeros(1), 2), {"x": 4, "y": 8}),
    (Graph(torch.zeros(10)), {"nodes": 40}),
    (Dictable(), {"x": 24}),
    ([1, 2, 3, 4], {"sample": 32}),
    ("text", {"sample": 4}),
    (SPARSE, {"sample": 5 * 4 + 2 * 5 * 8}),
    (None, {}),
]


@pytest.mark.parametrize(("sample", "expected"), SAMPLES, ids=lambda value: type(value).__name__)
def test_every_kind_of_sample_is_added_up(sample, expected):
    assert {leaf.name: leaf.bytes for leaf in leaves_of(sample)} == expected


@pytest.mark.filterwarnings("ignore:Sparse CSR")
def test_a_sparse_matrix_counts_its_indices_too():
    [leaf] = leaves_of(SPARSE.to_sparse_csr())
    assert leaf.bytes == 5 * 4 + 5 * 8 + 6 * 8


def test_a_sample_that_holds_itself_ends():
    ring: dict = {"x": torch.zeros(1)}
    ring["again"] = ring
    assert sum(leaf.bytes for leaf in leaves_of(ring)) < 100
