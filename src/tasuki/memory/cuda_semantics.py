"""Lets CPU tensors behave as CUDA's, as far as memory goes.

`cuda` wherever it is named means the CPU; autocast, attention, dropout and foreach go CUDA's way
(autocast.py, kernels.py); a copy from the host to the device is a copy, counted as the batch's;
what goes to the host leaves the count. What is made without saying where is counted as the
device's: too much rather than too little. All of it holds for one `with` block.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp.autocast_mode import autocast
from torch.amp.grad_scaler import GradScaler
from torch.overrides import TorchFunctionMode
from torch.utils import _foreach_utils

from tasuki.memory.autocast import cuda_autocast
from tasuki.memory.fake_ways import OPTIMIZER, patched
from tasuki.memory.kernels import cuda_kernels
from tasuki.memory.tracker import Tracker

_NOTHING = ("synchronize", "empty_cache", "set_device", "reset_peak_memory_stats", "ipc_collect")
_NO_BYTES = ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved")


@contextlib.contextmanager
def playing_cuda(tracker: Tracker) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        stack.enter_context(cuda_autocast())
        stack.enter_context(cuda_kernels())
        stack.enter_context(_without_onednn())
        for owner, name, value in _patches():
            stack.enter_context(patched(owner, name, value))
        stack.enter_context(_Devices(tracker))
        yield


@contextlib.contextmanager
def _without_onednn() -> Iterator[None]:
    """A CPU's recurrent layers are oneDNN's, whose memory nobody else can tell."""
    was_on = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(was_on)


def _patches() -> Iterator[tuple[Any, str, Any]]:
    supported = _foreach_utils._get_foreach_kernels_supported_devices
    for module in (OPTIMIZER, _foreach_utils):
        yield (module, "_get_foreach_kernels_supported_devices", lambda: [*supported(), "cpu"])
    yield autocast, "__init__", _on_cpu(autocast.__init__)
    yield GradScaler, "__init__", _on_cpu(GradScaler.__init__)
    yield nn.Module, "cuda", lambda module, *_: module
    for name in _NOTHING:
        yield torch.cuda, name, lambda *_, **__: None
    for name in _NO_BYTES:
        yield torch.cuda, name, lambda *_, **__: 0
    yield torch.cuda, "current_stream", lambda *_: _Stream()


class _Stream:
    """Nothing is ever under way."""

    def synchronize(self) -> None: ...

    def wait_stream(self, _: object) -> None: ...


def _on_cpu(init: Callable[..., None]) -> Callable[..., None]:
    """Of autocast and GradScaler, whose first argument is the device. Their defaults are CUDA's."""

    def init_on_cpu(self: Any, device_type: str = "cuda", *args: Any, **kwargs: Any) -> None:
        device = kwargs.pop("device", device_type)
        is_cuda = device.partition(":")[0] == "cuda"
        if is_cuda and isinstance(self, autocast) and not args and kwargs.get("dtype") is None:
            kwargs["dtype"] = torch.get_autocast_dtype("cuda")
        init(self, "cpu" if is_cuda else device, *args, **kwargs)

    return init_on_cpu


class _Devices(TorchFunctionMode):
    """Every call with a device in it."""

    def __init__(self, tracker: Tracker) -> None:
        super().__init__()
        self._tracker = tracker

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func is Tensor.cuda:
            return self._to_device(args[0])
        if func is Tensor.cpu:
            return self._to_host(args[0], is_copied=False)
        if func is Tensor.pin_memory:
            return args[0]
        if func is Tensor.to:
            return self._to(func, args, kwargs)
        if _is_cuda(kwargs.get("device")):
            kwargs["device"] = "cpu"
        args = tuple("cpu" if isinstance(a, torch.device) and _is_cuda(a) else a for a in args)
        return func(*args, **kwargs)

    def _to(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        value: Tensor = args[0]
        rest = args[1:]
        device = kwargs.pop("device", None)
        if device is None and rest and isinstance(rest[0], str | torch.device | int | Tensor):
            device, rest = rest[0], rest[1:]
        if isinstance(device, Tensor):
            kwargs["dtype"] = device.dtype
            device = "cpu" if self._tracker.is_on_host(device) else "cuda"
        is_copied = bool(kwargs.pop("copy", False))
        kwargs.pop("non_blocking", None)
        if device == "cpu":
            value = self._to_host(value, is_copied=is_copied)
        elif device is not None:  # `x.device` says cpu of what lies on the device
            value = self._to_device(value)
        kinds = [entry for entry in rest if isinstance(entry, torch.dtype)]
        dtype = kwargs.get("dtype") or (kinds[0] if kinds else None)
        if dtype is None and "memory_format" not in kwargs:
            return value
        more = {"memory_format": kwargs["memory_format"]} if "memory_format" in kwargs else {}
        result: Tensor = func(value, dtype=dtype or value.dtype, **more)
        return result

    def _to_device(self, value: Tensor) -> Tensor:
        tracker = self._tracker
        if not tracker.is_on_host(value):
            return value
        before, tracker.kind = tracker.kind, "batch"
        try:
            with tracker.placing(on_host=False):
                return value.clone()
        finally:
            tracker.kind = before

    def _to_host(self, value: Tensor, *, is_copied: bool) -> Tensor:
        if self._tracker.is_on_host(value) and not is_copied:
            return value
        with self._tracker.placing(on_host=True):
            return value.clone()


def _is_cuda(device: object) -> bool:
    if isinstance(device, int) and not isinstance(device, bool):
        return True
    kind = device.type if isinstance(device, torch.device) else device
    return isinstance(kind, str) and kind.partition(":")[0] == "cuda"
