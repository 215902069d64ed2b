"""How a worker hands a batch over: small ones as plain bytes, large ones through shared memory.

torch passes every tensor by a file descriptor of its own, which takes 2 to 3 ms per micro-batch; up
to about 256 kB it is quicker to send the bytes. What arrives is the same, bit for bit, and so are
the numbers that a model makes of it: those may depend on how memory is aligned, so `align` puts
every batch into memory as torch aligns it, whoever fetched it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from numpy.typing import NDArray
from torch import Tensor

_SMALL = 256 << 10
_ALIGNED = 64
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
    _each(batch, Tensor, lambda tensor: sizes.append(tensor.nbytes if _goes_plain(tensor) else 0))
    if sum(sizes) > _SMALL:
        return batch
    return _each(batch, Tensor, lambda t: _Plain(t.numpy()) if _goes_plain(t) else t)


def unpack(batch: Any) -> Any:
    """In the rank: the batch as the worker made it."""
    return _each(batch, _Plain, lambda plain: torch.from_numpy(plain.array).clone())


def align(batch: Any) -> Any:
    """The same batch in memory as torch itself would have taken."""
    return _each(batch, Tensor, lambda t: t.clone() if _is_odd(t) and _is_plain(t) else t)


def _is_odd(tensor: Tensor) -> bool:
    """Asked first: hardly any is, and to know that it is plain takes ten times as long."""
    if type(tensor) is not Tensor or tensor.layout is not torch.strided or tensor.is_nested:
        return False
    return tensor.data_ptr() % _ALIGNED != 0


def _goes_plain(tensor: Tensor) -> bool:
    """Bytes tell no strides. Those of a dimension of size 1 may be any (images of one channel that
    are `channels_last`), and kernels are chosen by them."""
    if not _is_plain(tensor):
        return False
    expected = 1
    for size, stride in zip(reversed(tensor.shape), reversed(tensor.stride()), strict=True):
        if stride != expected:
            return False
        expected *= max(size, 1)
    return True


def _is_plain(tensor: Tensor) -> bool:
    """Numbers one after another in host memory: not sparse, nested, quantised or a subclass."""
    if type(tensor) is not Tensor or tensor.layout is not torch.strided or tensor.is_nested:
        return False
    is_plain = tensor.device.type == "cpu" and tensor.dtype in _PLAIN and tensor.is_contiguous()
    return is_plain and not tensor.requires_grad and not tensor.is_conj() and not tensor.is_neg()


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
