"""A limit on the memory of tensors, so that running out of it can be tried on any machine.

    with memory_cap("2M", model):
        train(model)                   # torch.OutOfMemoryError where live tensors exceed 2 MiB

Every storage counts once, however many tensors look at it, from the first operation that makes or
uses it until it is freed. Memory that an operation needs only while it works is not seen, nor what
is not torch's. It sees this thread and the backward passes it starts; loader workers are processes
of their own. In a worker `TASUKI_MEMORY_CAP=2M` does the same around a whole phase: for tests.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tasuki.units import format_bytes, parse_bytes

VARIABLE = "TASUKI_MEMORY_CAP"
_RUNNING: list[Cap] = []


class Cap(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts storages; `live_bytes` now, `peak_bytes` at the most so far."""

    def __init__(self, limit: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.limit = limit
        self.live_bytes = self.peak_bytes = 0
        self._known: dict[int, int] = {}
        """Bytes by storage; a storage may grow."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        before = self.live_bytes
        out = func(*args, **kwargs)
        for value in tree_leaves((args, kwargs, out)):
            self.count(value)
        if self.live_bytes > self.limit and self.live_bytes > before:
            self._refuse(self.live_bytes - before)
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)
        return out

    def count(self, value: object) -> None:
        """Its storage, unless it is counted already."""
        if not isinstance(value, Tensor) or value.device.type == "meta":
            return
        try:
            storage = value.untyped_storage()
        except (NotImplementedError, RuntimeError):  # sparse tensors have none of their own
            return
        key, size = storage._cdata, storage.nbytes()
        if key not in self._known:
            self._known[key] = 0
            weakref.finalize(storage, self._forget, key).atexit = False
        self.live_bytes += size - self._known[key]
        self._known[key] = size

    def _forget(self, key: int) -> None:
        self.live_bytes -= self._known.pop(key, 0)

    def _refuse(self, asked: int) -> None:
        over = self.live_bytes - self.limit
        raise torch.OutOfMemoryError(
            f"memory cap of {format_bytes(self.limit)}: out of memory, tried to allocate {asked} "
            f"bytes, {over} bytes too many"
        )


@contextlib.contextmanager
def memory_cap(limit: int | str, *held: nn.Module | Tensor) -> Iterator[Cap]:
    """Tensors of at most `limit` bytes live at once inside. What is `held` counts from the
    beginning; other tensors that exist already, from their first use on."""
    cap = Cap(parse_bytes(limit))
    for one in held:
        tensors = [one] if isinstance(one, Tensor) else [*one.parameters(), *one.buffers()]
        for tensor in tensors:
            cap.count(tensor)
    with cap:
        _RUNNING.append(cap)
        try:
            yield cap
        finally:
            _RUNNING.remove(cap)


def running_cap() -> Cap | None:
    """The innermost that is in force."""
    return _RUNNING[-1] if _RUNNING else None
