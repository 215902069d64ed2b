"""`memory_cap`: torch runs out of memory where live tensors would exceed it, and only there."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tasuki.testing import memory_cap


def test_a_storage_counts_once_however_many_tensors_look_at_it_and_until_it_is_freed():
    with memory_cap("1M") as cap:
        whole = torch.zeros(1000)
        views = [whole[n:] for n in range(10)]
        assert cap.live_bytes == 4000
        more = whole + 1
        assert cap.live_bytes == 8000
        del whole, more
        assert cap.live_bytes == 4000, "a view holds it"
        del views
        assert cap.live_bytes == 0 and cap.peak_bytes == 8000


def test_what_is_held_counts_from_the_beginning_and_the_rest_from_its_first_use():
    model, other = nn.Linear(9, 10), torch.zeros(50)
    with memory_cap("1M", model, other) as cap:
        assert cap.live_bytes == 4 * (100 + 50)
        unseen = torch.zeros(0)
    unseen = torch.zeros(25)
    with memory_cap("1M", model) as cap:
        unseen.add_(1)
        assert cap.live_bytes == 4 * 125


def test_the_tensor_that_is_one_too_many_raises_torchs_own_error_and_does_not_stay():
    with memory_cap(8000) as cap:
        held = torch.zeros(1500)
        with pytest.raises(torch.OutOfMemoryError, match="4000 bytes, 2000 bytes too many"):
            torch.zeros(1000)
        assert cap.live_bytes == 6000
        assert len(torch.zeros(500)) + len(held) == 2000


def test_activations_and_backward_passes_count():
    limit = 70_000
    model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 1))
    with memory_cap(limit, model):
        model(torch.ones(32, 8)).sum().backward()
        with pytest.raises(torch.OutOfMemoryError):
            model(torch.ones(limit // 256, 8)).sum().backward()


def test_numbers_do_not_change_under_it():
    def train() -> list[torch.Tensor]:
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.3))
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(3):
            model(torch.randn(4, 8)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        return [*model.parameters(), *model.buffers()]

    free = train()
    with memory_cap("10M"):
        capped = train()
    assert all(torch.equal(one, other) for one, other in zip(free, capped, strict=True))
