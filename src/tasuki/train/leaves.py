"""What a sample consists of: its tensors, arrays and numbers, with names, types and bytes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

_MOST_DEEP = 8
_NUMBER_BYTES = 8


@dataclass(frozen=True, slots=True)
class Leaf:
    """One tensor, array, text or number."""

    name: str
    """`x`, `graph.edges`, `0`; a sample that is one leaf is called `sample`."""
    type: str
    shape: tuple[int, ...]
    bytes: int


def leaves_of(sample: Any, name: str = "", depth: int = 0) -> Iterator[Leaf]:
    """All of them, however they are nested; what holds no numbers has none."""
    label = name or "sample"
    if isinstance(sample, torch.Tensor):
        kind = str(sample.dtype).removeprefix("torch.")
        yield Leaf(label, kind, tuple(sample.shape), _tensor_bytes(sample))
    elif isinstance(sample, np.ndarray | np.generic):
        yield Leaf(label, str(sample.dtype), sample.shape, sample.nbytes)
    elif isinstance(sample, bytes | str):
        yield Leaf(label, type(sample).__name__, (len(sample),), len(sample))
    elif isinstance(sample, bool | int | float | complex):
        yield Leaf(label, type(sample).__name__, (), _NUMBER_BYTES)
    elif isinstance(sample, list | tuple) and _are_numbers(sample):
        yield Leaf(label, type(sample[0]).__name__, (len(sample),), _NUMBER_BYTES * len(sample))
    elif depth < _MOST_DEEP:
        for key, value in _parts(sample):
            yield from leaves_of(value, f"{name}.{key}" if name else str(key), depth + 1)


def _are_numbers(values: list[Any] | tuple[Any, ...]) -> bool:
    """A list of plain numbers is one leaf; a pair of them, as (x, y), is two."""
    return len(values) > 2 and all(isinstance(value, int | float) for value in values)


def _parts(sample: Any) -> Iterator[tuple[object, Any]]:
    if isinstance(sample, Mapping):
        yield from sample.items()
    elif hasattr(sample, "_asdict"):
        yield from sample._asdict().items()
    elif isinstance(sample, list | tuple | set):
        yield from enumerate(sample)
    elif hasattr(sample, "to_dict"):  # torch_geometric's Data, and pandas rows
        yield from sample.to_dict().items()
    elif hasattr(sample, "__dict__"):
        yield from vars(sample).items()


def _tensor_bytes(tensor: torch.Tensor) -> int:
    if tensor.layout == torch.sparse_coo:
        return _tensor_bytes(tensor._indices()) + _tensor_bytes(tensor._values())
    if tensor.layout == torch.sparse_csr:
        parts = (tensor.crow_indices(), tensor.col_indices(), tensor.values())
        return sum(_tensor_bytes(part) for part in parts)
    return tensor.nelement() * tensor.element_size()
