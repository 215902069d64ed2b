"""Where the memory of a device ends, and how full it was: of a GPU, or under a test's cap.

A plain CPU has no gauge: its tensors share the host's memory with everything else, and what takes
too much of it is killed instead of told. Nothing here sets a limit. Asked by the tuner's child
(batch_size.py) and at epoch borders (borders.py).
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch

if TYPE_CHECKING:
    from tasuki.testing.memory import Cap


class Gauge(Protocol):
    """Of one device, in this process."""

    @property
    def capacity_bytes(self) -> int:
        """What tensors of this process may take, with what is cached for them."""
        ...

    def peak_bytes(self) -> int:
        """The most they took since the last reset."""
        ...

    def reset(self) -> None: ...

    def forget(self) -> None:
        """As a reset, after what is not to count: nothing of it stays in a cache either."""
        ...


class Peaks(NamedTuple):
    """The most that an attempt has taken, in bytes."""

    tensors: int = 0
    reserved: int = 0


_COUNTED: dict[torch.device, Peaks] = {}
"""Before torch began to count anew, which it does for the whole process, too."""


def attempt_peaks(device: torch.device) -> Peaks:
    """Of a GPU, in this process, whoever has reset the counts."""
    before = _COUNTED.get(device, Peaks())
    tensors, reserved = torch.cuda.max_memory_allocated, torch.cuda.max_memory_reserved
    return Peaks(max(before.tensors, tensors(device)), max(before.reserved, reserved(device)))


def open_gauge(device: torch.device) -> Gauge | None:
    """None: no limit is known."""
    if device.type == "cuda":
        return CudaGauge(device)
    testing = sys.modules.get("tasuki.testing.memory")  # whoever runs under a cap has imported it
    cap = testing.running_cap() if testing is not None else None
    return CapGauge(cap) if cap is not None else None


def name_of(device: torch.device) -> str:
    """The type of GPU, by which figures of past runs are told apart."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


class CudaGauge:
    """By what the allocator has reserved: what is cached in pieces cannot be used either."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    @property
    def capacity_bytes(self) -> int:
        """The card's memory without CUDA's own and without that of other processes, as it is
        now."""
        free, _ = torch.cuda.mem_get_info(self._device)
        return int(free + torch.cuda.memory_reserved(self._device))

    def peak_bytes(self) -> int:
        return int(torch.cuda.max_memory_reserved(self._device))

    def reset(self) -> None:
        _COUNTED[self._device] = attempt_peaks(self._device)
        torch.cuda.reset_peak_memory_stats(self._device)

    def forget(self) -> None:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self._device)


class CapGauge:
    """Of `TASUKI_MEMORY_CAP`."""

    def __init__(self, cap: Cap) -> None:
        self._cap = cap

    @property
    def capacity_bytes(self) -> int:
        return self._cap.limit

    def peak_bytes(self) -> int:
        return self._cap.peak_bytes

    def reset(self) -> None:
        self._cap.peak_bytes = self._cap.live_bytes

    forget = reset
