"""A worker hands its batches over as they are, large or small."""

from __future__ import annotations

import pickle
from collections import namedtuple

import pytest
import torch

from tasuki.data.handing import align, pack, unpack

Pair = namedtuple("Pair", ["left", "right"])

KINDS = [
    torch.arange(6, dtype=kind).reshape(2, 3)
    for kind in (torch.float32, torch.float64, torch.int64, torch.uint8, torch.bfloat16)
]
BATCHES = [
    *KINDS,
    torch.tensor(True),
    torch.zeros(0, 3),
    torch.arange(12.0).reshape(3, 4).t(),
    {"x": KINDS[0], "n": torch.tensor([1, 2]), "names": ["a", "b"], "size": 3},
    [KINDS[1], (KINDS[2], None)],
    Pair(KINDS[0], {"deep": [KINDS[3]]}),
    torch.zeros(300_000),
    torch.arange(18.0).reshape(2, 1, 3, 3).to(memory_format=torch.channels_last),
    torch.arange(5.0).reshape(5, 1).t(),
]
ODD = [
    torch.eye(3).to_sparse_coo(),
    torch.eye(3).to_sparse_csr(),
    torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)], layout=torch.jagged),
    torch.zeros(3, requires_grad=True),
]


def travel(batch):
    return unpack(pickle.loads(pickle.dumps(pack(batch))))


def equal(one, other):
    assert type(one) is type(other)
    if isinstance(one, torch.Tensor):
        assert one.dtype == other.dtype and one.shape == other.shape
        assert one.stride() == other.stride()
        assert torch.equal(one, other)
    elif isinstance(one, dict):
        assert list(one) == list(other)
        for key in one:
            equal(one[key], other[key])
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for left, right in zip(one, other, strict=True):
            equal(left, right)
    else:
        assert one == other


def test_what_arrives_is_what_was_sent():
    for batch in BATCHES:
        equal(batch, travel(batch))


def test_small_batches_go_without_shared_memory_and_large_ones_with_it():
    small = pack({"x": torch.zeros(8, 8), "y": torch.zeros(8)})
    assert not any(isinstance(part, torch.Tensor) for part in small.values())
    large = pack({"x": torch.zeros(300_000), "y": torch.zeros(8)})
    assert all(isinstance(part, torch.Tensor) for part in large.values())


@pytest.mark.parametrize("tensor", ODD, ids=["coo", "csr", "nested", "gradient"])
def test_unusual_tensors_are_left_as_they_are(tensor):
    batch = {"graph": tensor, "x": torch.zeros(3)}
    assert pack(batch)["graph"] is tensor
    assert align(batch)["graph"] is tensor


def test_a_batch_is_aligned_as_torch_does_it_wherever_it_was_made():
    for number in range(1, 40):
        assert travel(torch.zeros(number)).data_ptr() % 64 == 0
    odd = torch.arange(40.0)[1:35].view(2, 17)
    assert odd.data_ptr() % 64
    [aligned] = align([odd])
    assert aligned.data_ptr() % 64 == 0 and torch.equal(aligned, odd)
    straight = torch.zeros(4)
    assert align(straight) is straight
