"""A state's tensors in reused host memory, laid out as the file they become.

Training waits for one copy and goes on; a thread writes the file from here. The memory is pinned
beside a GPU, so that all copies run at once and are waited for together. It is given back to nobody
and grows at most once per stage.
"""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tasuki.checkpoint.blobs import NumpyArray, flat_bytes, view_bytes
from tasuki.checkpoint.codec import Encoded
from tasuki.checkpoint.records import PAGE_BYTES
from tasuki.checkpoint.tensorfile import Layout, lay_out

_FINITE: dict[torch.dtype, type] = {
    torch.float16: np.float16, torch.float32: np.float32, torch.float64: np.float64,
    torch.bfloat16: np.uint16,
}  # fmt: skip
_EXPONENT = np.uint16(0x7F80)
"""All its bits set: NaN or infinity, in bfloat16."""
_BLOCK = 1 << 18
_BYTE = torch.uint8
_WIPE_ON_FORK = 18
"""MADV_WIPEONFORK of Linux, which `mmap` has no name for."""


@dataclass(frozen=True, slots=True)
class HostImage:
    """One state, apart from what training changes. Valid until its memory is filled again."""

    tree: Any
    layout: Layout
    memory: Tensor
    """The whole file, header included, on the boundary of a page."""

    @property
    def size(self) -> int:
        return self.memory.numel()

    @property
    def data(self) -> memoryview:
        return view_bytes(self.memory)

    def first_not_finite(self, is_meant: Callable[[str], bool]) -> str | None:
        """Of the tensors that are meant, by name, the first that holds NaN or infinities."""
        body = self.memory[len(self.layout.header) :]
        for name, start, stop in self.layout.places:
            if is_meant(name) and not _is_finite(body[start:stop], self.layout.dtypes[name]):
                return name
        return None


def _is_finite(memory: Tensor, dtype: torch.dtype) -> bool:
    """In numpy, on one thread: torch's own threads are busy with training."""
    if dtype not in _FINITE:
        return True
    values: NumpyArray = memory.numpy().view(_FINITE[dtype])
    for start in range(0, values.size, _BLOCK):
        block = values[start : start + _BLOCK]
        if dtype is torch.bfloat16:
            is_finite = bool(((block & _EXPONENT) != _EXPONENT).all())
        else:
            is_finite = bool(np.isfinite(block).all())
        if not is_finite:
            return False
    return True


class HostBuffer:
    """Memory for one state."""

    def __init__(self, *, is_pinned: bool = False) -> None:
        self._is_pinned = is_pinned
        self._memory = torch.empty(0, dtype=_BYTE)

    @property
    def size(self) -> int:
        """What it has taken of the host's memory."""
        return self._memory.numel()

    def hold(self, encoded: Encoded) -> HostImage:
        """Copy the state's tensors here. When this returns training may change them."""
        layout = lay_out(encoded.tensors)
        memory = self._take(len(layout.header) + layout.size)
        memory[: len(layout.header)].copy_(torch.frombuffer(bytearray(layout.header), dtype=_BYTE))
        body = memory[len(layout.header) :]
        is_on_gpu = False
        for name, start, stop in layout.places:
            if stop > start:
                tensor = encoded.tensors[name]
                is_on_gpu |= tensor.is_cuda
                body[start:stop].copy_(flat_bytes(tensor), non_blocking=True)
        if is_on_gpu:
            torch.cuda.synchronize()
        return HostImage(encoded.tree, layout, memory)

    def _take(self, size: int) -> Tensor:
        if self._memory.numel() < size + PAGE_BYTES:
            self._memory = self._allocate(size + PAGE_BYTES)
        first = -self._memory.data_ptr() % PAGE_BYTES
        return self._memory[first : first + size]

    def _allocate(self, size: int) -> Tensor:
        if self._is_pinned:
            try:
                return torch.empty(size, dtype=_BYTE, pin_memory=True)
            except RuntimeError:
                self._is_pinned = False  # slower copies are better than no save
        try:
            memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError as error:
            raise MemoryError(f"{size} bytes of host memory: {error.strerror}") from error
        # Loader workers are forked: were it shared with them, the next copy would first have to
        # take every page back, which takes twice as long as the copy.
        with contextlib.suppress(OSError):
            memory.madvise(_WIPE_ON_FORK)
        return torch.frombuffer(memory, dtype=_BYTE)
