"""A state's tensors in reused host memory, laid out as the file they become.

Training waits for one copy and goes on; a thread writes the file from here. The memory is pinned
beside a GPU, so that all copies run at once and are waited for together. It is given back to nobody
and grows at most once per stage. Called by `runtime.saver`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tasuki.checkpoint.blobs import flat_bytes, view_bytes
from tasuki.checkpoint.codec import Encoded
from tasuki.checkpoint.tensorfile import Layout, lay_out


@dataclass(frozen=True, slots=True)
class HostImage:
    """One state, apart from what training changes. Valid until its memory is filled again."""

    tree: Any
    layout: Layout
    memory: Tensor
    """The bytes behind the file's header."""

    @property
    def size(self) -> int:
        return len(self.layout.header) + self.layout.size

    @property
    def data(self) -> memoryview:
        return view_bytes(self.memory)

    def tensor(self, name: str, dtype: torch.dtype) -> Tensor:
        """One tensor's values in a row, as they lie here."""
        start, stop = next((a, b) for n, a, b in self.layout.places if n == name)
        return self.memory[start:stop].view(dtype)


class HostBuffer:
    """Memory for one state."""

    def __init__(self, *, is_pinned: bool = False) -> None:
        self._is_pinned = is_pinned
        self._memory = torch.empty(0, dtype=torch.uint8)

    def hold(self, encoded: Encoded) -> HostImage:
        """Copy the state's tensors here. When this returns training may change them."""
        layout = lay_out(encoded.tensors)
        if self._memory.numel() < layout.size:
            self._memory = torch.empty(layout.size, dtype=torch.uint8, pin_memory=self._is_pinned)
        memory = self._memory[: layout.size]
        is_on_gpu = False
        for name, start, stop in layout.places:
            if stop > start:
                tensor = encoded.tensors[name]
                is_on_gpu |= tensor.is_cuda
                memory[start:stop].copy_(flat_bytes(tensor), non_blocking=True)
        if is_on_gpu:
            torch.cuda.synchronize()
        return HostImage(encoded.tree, layout, memory)
