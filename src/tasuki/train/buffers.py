"""Buffers of a model as they were: for steps that are thrown away, and for passes made twice.

What has not changed is left alone: writing into it, even the same numbers, would make torch refuse
a backward pass that has kept it. Versions do not tell: BatchNorm moves its means without a new one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor, nn


class Kept(NamedTuple):
    """One buffer, before."""

    owner: nn.Module
    name: str
    buffer: Tensor | None
    value: Tensor | None

    @property
    def has_changed(self) -> bool:
        """Reads them: waits for the device."""
        return self.is_replaced or not _are_equal(self.buffer, self.value)

    @property
    def is_replaced(self) -> bool:
        return self.owner._buffers.get(self.name) is not self.buffer


def keep_buffers(module: nn.Module) -> list[Kept]:
    """All of them, those that are None yet too."""
    return [one for owner in module.modules() for one in keep_own_buffers(owner)]


def keep_own_buffers(owner: nn.Module) -> list[Kept]:
    """Without those of its children."""
    return [keep_buffer(owner, name) for name in owner._buffers]


def keep_buffer(owner: nn.Module, name: str) -> Kept:
    buffer = owner._buffers.get(name)
    return Kept(owner, name, buffer, None if buffer is None else buffer.clone())


def _are_equal(buffer: Tensor | None, value: Tensor | None) -> bool:
    return buffer is value or (
        buffer is not None and value is not None and torch.equal(buffer, value)
    )


@torch.no_grad()
def put_buffers_back(kept: Iterable[Kept]) -> None:
    """The tensors themselves, with the values they had."""
    for one in kept:
        buffer = one.buffer
        if buffer is not None and not _are_equal(buffer, one.value):
            assert one.value is not None
            if _can_be_written(buffer):
                buffer.copy_(one.value)
            else:
                buffer = one.value
        one.owner._buffers[one.name] = buffer


def _can_be_written(buffer: Tensor) -> bool:
    """An expanded one has several elements in one place."""
    return 0 not in buffer.stride() or buffer.numel() < 2
