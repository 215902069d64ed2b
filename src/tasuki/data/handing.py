"""How a worker hands a batch over: small ones as plain bytes, large ones through shared memory.

torch passes every tensor by a file descriptor of its own, which takes 2 to 3 ms per micro-batch; up
to about 256 kB it is quicker to send the bytes. What arrives is the same, bit for bit, in memory
that torch has aligned.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from numpy.typing import NDArray
from torch import Tensor

_SMALL = 256 << 10
_PLAIN = {
    *(torch.float16, torch.float32, torch.float64, torch.complex64, torch.complex128, torch.bool),
    *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
}


class _Plain(NamedTuple):
    """A tensor on its way."""

    array: NDArray[Any]


def pack(batch: Any) -> Any:
    """In the worker: what is sent."""
    sizes: list[int] = []
    _each(batch, Tensor, lambda tensor: sizes.append(tensor.nbytes))
    if not sizes or sum(sizes) > _SMALL:
        return batch
    return _each(batch, Tensor, _plain)


def unpack(batch: Any) -> Any:
    """In the rank: the batch as the worker made it."""
    return _each(batch, _Plain, lambda plain: torch.from_numpy(plain.array).clone())


def _plain(tensor: Tensor) -> Tensor | _Plain:
    is_plain = type(tensor) is Tensor and tensor.dtype in _PLAIN and tensor.is_contiguous()
    is_plain = is_plain and tensor.device.type == "cpu" and not tensor.requires_grad
    return _Plain(tensor.numpy()) if is_plain else tensor


def _each(value: Any, kind: type, change: Callable[[Any], Any]) -> Any:
    """The same nest of dicts, lists and tuples with every `kind` changed; others are left alone."""
    if isinstance(value, kind):
        return change(value)
    if type(value) is dict:
        return {key: _each(part, kind, change) for key, part in value.items()}
    if type(value) is list:
        return [_each(part, kind, change) for part in value]
    if type(value) is tuple:
        return tuple(_each(part, kind, change) for part in value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_each(part, kind, change) for part in value))
    return value
