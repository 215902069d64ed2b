"""Buffers of a model, put back as they were."""

from __future__ import annotations

import torch
from torch import nn

from tasuki.train.buffers import keep_buffers, put_buffers_back


class Holder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("late", None)
        self.register_buffer("wide", torch.ones(1).expand(4))
        self.register_buffer("plain", torch.zeros(3))
        self.norm = nn.BatchNorm1d(3)


def test_all_of_them_come_back_also_those_that_were_not_there_yet():
    model = Holder()
    before = {name: value.clone() for name, value in model.named_buffers()}
    plain = model.plain
    kept = keep_buffers(model)
    model.late = torch.full((2,), torch.nan)
    model.wide = torch.zeros(4)
    model.plain.add_(1)
    model.norm(torch.randn(4, 3))
    put_buffers_back(kept)
    after = dict(model.named_buffers())
    assert model.late is None and model.plain is plain
    assert after.keys() == before.keys()
    assert all(torch.equal(value, after[name]) for name, value in before.items())


def test_what_has_not_changed_is_not_written_to():
    model = Holder()
    versions = [buffer._version for buffer in model.buffers()]
    put_buffers_back(keep_buffers(model))
    assert [buffer._version for buffer in model.buffers()] == versions
