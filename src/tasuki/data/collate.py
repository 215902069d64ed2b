"""Samples of different sizes as one batch, padded with zeros."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import default_collate

from tasuki.errors import DataError


def pad_collate(samples: Sequence[Any]) -> Any:
    """As torch's default collate, but arrays are padded to the largest of the batch first.

    For buckets that hold several sizes (`buckets: auto`, boundaries). What is padding must be told
    from the sizes: keep `n` in the sample.
    """
    first = samples[0]
    if isinstance(first, Mapping):
        return {key: pad_collate([sample[key] for sample in samples]) for key in first}
    if isinstance(first, tuple | list):
        padded = [pad_collate(list(parts)) for parts in zip(*samples, strict=True)]
        return type(first)(*padded) if hasattr(first, "_fields") else padded
    if isinstance(first, np.ndarray | Tensor):
        tensors = [torch.as_tensor(sample) for sample in samples]
        return _pad(tensors)
    return default_collate(list(samples))


pad_collate.draws_random_numbers = False  # type: ignore[attr-defined]


def _pad(tensors: list[Tensor]) -> Tensor:
    shapes = [tuple(tensor.shape) for tensor in tensors]
    if len(set(shapes)) == 1:
        return torch.stack(tensors)
    if len({len(shape) for shape in shapes}) > 1:
        raise DataError(
            f"samples of one step have arrays of {min(map(len, shapes))} and of "
            f"{max(map(len, shapes))} dimensions, which no padding makes equal",
            hint="give the arrays of all samples the same number of dimensions",
        )
    largest = [max(sizes) for sizes in zip(*shapes, strict=True)]
    dtype = reduce(torch.promote_types, (tensor.dtype for tensor in tensors))  # as stacking does
    padded = tensors[0].new_zeros((len(tensors), *largest), dtype=dtype)
    for row, tensor in zip(padded, tensors, strict=True):
        row[tuple(slice(0, size) for size in tensor.shape)] = tensor
    return padded
