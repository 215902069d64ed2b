"""What the memory is used for, measured in one step of each attempt that runs anyway.

Device and host are summed apart. `Footprint.measured` wraps that step: it only looks, so the step's
numbers are the same bits, and later steps cost nothing. The sums are pure.
"""

from __future__ import annotations

import contextlib
import os
import resource
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tasuki.data.loader import MicroBatch
from tasuki.runs.machine import ProcessReader, host_bytes
from tasuki.units import format_bytes

_UNLIMITED = 1 << 60
_DEEPEST = 8


# -- sums -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMemory:
    """weights + gradients + optimizer + activations + batch + other = peak; peak + headroom =
    total."""

    weights: int
    gradients: int
    optimizer: int
    activations: int | None
    """None: nobody could look (a compiled model on a CPU); then they are in `other`."""
    batch: int
    """The tensors of one micro-batch: graphs and masks too."""
    other: int
    """Workspaces, fragments, libraries, other processes on the device."""
    peak: int
    total: int
    headroom: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMemory:
    """Of this rank's node, as rank 0 sees it."""

    rss: int
    """Of rank 0's process; on a CPU all of the device's parts are in here."""
    loader: int
    """Of its loader workers."""
    save_buffers: int
    """For the copies of the state that saves are written from; a part of `rss`."""
    total: int
    """The least of the machine, the cgroup and what Slurm gave."""
    headroom: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensors:
    """Bytes in storages that were seen, each counted once."""

    weights: int = 0
    gradients: int = 0
    optimizer: int = 0
    batch: int = 0
    activations: int | None = None
    """None: nobody looked; what is left of the peak, where that is known."""

    @property
    def known(self) -> int:
        return self.weights + self.gradients + self.optimizer + self.batch


def sum_device(seen: Tensors, *, peak_tensors: int | None, used: int, total: int) -> DeviceMemory:
    """`peak_tensors`: the most that all tensors took, where the allocator tells (CUDA); then what
    is not known beforehand are activations. `used`: by everything on the device."""
    activations = seen.activations
    if activations is None and peak_tensors is not None:
        activations = max(0, peak_tensors - seen.known)
    tensors = seen.known + (activations or 0)
    peak = max(used, tensors)
    return DeviceMemory(
        weights=seen.weights,
        gradients=seen.gradients,
        optimizer=seen.optimizer,
        activations=activations,
        batch=seen.batch,
        other=peak - tensors,
        peak=peak,
        total=total,
        headroom=total - peak,
    )


def sum_host(
    *, rss: int, loader: int, save_buffers: int, limits: Iterable[int], available: int, ranks: int
) -> HostMemory:
    """`limits` of the whole node's job, which has so many ranks like this one; `available`: what
    the machine, or the cgroup, could still give right now."""
    total = min(limits)
    left = total - ranks * (rss + loader)
    return HostMemory(
        rss=rss,
        loader=loader,
        save_buffers=save_buffers,
        total=total,
        headroom=min(left, available),
    )


def in_words(device: DeviceMemory, host: HostMemory, *, kind: str) -> str:
    """One line for the log."""
    names = ("weights", "gradients", "optimizer", "activations", "batch", "other")
    sizes = {name: getattr(device, name) for name in names}
    parts = [f"{name} {format_bytes(size)}" for name, size in sizes.items() if size is not None]
    if device.activations is None:
        parts[-1] += " (activations of a compiled model among it)"
    return (
        f"Memory ({kind}): {' + '.join(parts)} = {format_bytes(device.peak)} of "
        f"{format_bytes(device.total)}; host: rank 0 {format_bytes(host.rss)} (save buffers "
        f"{format_bytes(host.save_buffers)}), loader {format_bytes(host.loader)}, "
        f"{format_bytes(max(0, host.headroom))} of {format_bytes(host.total)} free"
    )


# -- tensors --------------------------------------------------------------------------------------


def count_bytes(tensors: Iterable[Tensor], *, seen: set[int] | None = None) -> int:
    """Of their storages, each once; `seen` are those that are counted elsewhere, and grows."""
    seen = set() if seen is None else seen
    total = 0
    for tensor in tensors:
        for part in _dense(tensor):
            storage = part.untyped_storage()
            place = storage.data_ptr()
            if place and place not in seen:
                seen.add(place)
                total += storage.nbytes()
    return total


def _dense(tensor: Tensor) -> list[Tensor]:
    if tensor.layout is torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    return [tensor] if tensor.layout is torch.strided else []


def tensors_in(value: Any, *, depth: int = _DEEPEST) -> Iterator[Tensor]:
    """However nested: lists, mappings, and objects such as graphs that keep them as attributes."""
    if isinstance(value, Tensor):
        yield value
    elif depth == 0 or isinstance(value, str | bytes | int | float | type | nn.Module):
        return
    elif isinstance(value, Mapping):
        for entry in value.values():
            yield from tensors_in(entry, depth=depth - 1)
    elif isinstance(value, list | tuple | set | frozenset):
        for entry in value:
            yield from tensors_in(entry, depth=depth - 1)
    elif hasattr(value, "__dict__"):
        yield from tensors_in(vars(value), depth=depth - 1)


class Saved:
    """What the backward pass keeps: storages that are neither weights nor the batch."""

    def __init__(self, known: set[int]) -> None:
        self.most = 0
        """Bytes at once."""
        self._known = known
        self._batches: deque[set[int]] = deque(maxlen=2)
        self._kept: dict[int, list[int]] = {}
        """Where a storage is: how many keep it, and its bytes."""
        self._now = 0

    def begin_batch(self, batch: set[int]) -> None:
        """A micro-batch is fetched while the one before is still worked on."""
        self._batches.append(batch)

    def pack(self, tensor: Tensor) -> Any:
        """autograd's. Never raises, inside the user's model."""
        with contextlib.suppress(Exception):
            places = [part.untyped_storage() for part in _dense(tensor)]
            kept = [self._keep(s.data_ptr(), s.nbytes()) for s in places]
            # Detached: an operation that saves its own result would hold itself through us, and
            # only a backward pass could let go. One that runs out of memory never comes to it.
            return _Kept(tensor.detach(), self, kept)
        return tensor

    @staticmethod
    def unpack(kept: Any) -> Tensor:
        tensor: Tensor = kept.tensor if isinstance(kept, _Kept) else kept
        return tensor

    def _keep(self, place: int, size: int) -> int:
        if place in self._known or any(place in batch for batch in self._batches):
            return 0
        entry = self._kept.setdefault(place, [0, size])
        entry[0] += 1
        if entry[0] == 1:
            self._now += size
            self.most = max(self.most, self._now)
        return place

    def drop(self, place: int) -> None:
        """The backward pass is done with it."""
        entry = self._kept.get(place)
        if entry is not None:
            entry[0] -= 1
            if not entry[0]:
                self._now -= self._kept.pop(place)[1]

    @contextlib.contextmanager
    def hooked(self) -> Iterator[None]:
        """torch.func refuses to work under hooks, so they are taken off where it asks: what it
        keeps is not counted, but the user's step must not fail because somebody looked."""
        graph: Any = torch.autograd.graph
        thread = threading.get_ident()
        refuse = graph.disable_saved_tensors_hooks

        @contextlib.contextmanager
        def step_aside(message: str) -> Iterator[None]:
            is_ours = threading.get_ident() == thread
            if is_ours:
                hooks.__exit__()
            try:
                with refuse(message):
                    yield
            finally:
                if is_ours:
                    hooks.__enter__()

        hooks = graph.saved_tensors_hooks(self.pack, self.unpack)
        with hooks:
            graph.disable_saved_tensors_hooks = step_aside
            try:
                yield
            finally:
                graph.disable_saved_tensors_hooks = refuse


class _Kept:
    """A saved tensor in autograd's hands; tells when they let go of it."""

    __slots__ = ("_places", "_saved", "tensor")

    def __init__(self, tensor: Tensor, saved: Saved, places: list[int]) -> None:
        self.tensor = tensor
        self._saved, self._places = saved, places

    def __del__(self) -> None:
        for place in self._places:
            self._saved.drop(place)


# -- host -----------------------------------------------------------------------------------------


def rank_rss_bytes() -> int:
    with open("/proc/self/statm", "rb") as file:  # noqa: PTH123 (once per line of metrics)
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def host_limits(environ: Mapping[str, str], *, root: Path = Path("/")) -> list[int]:
    """Of the machine, of the cgroups this process is in, and what Slurm says it gave."""
    limits = [host_bytes(), *(limit for limit, _ in _cgroups(root))]
    told = environ.get("SLURM_MEM_PER_NODE", "")
    if told.isdecimal() and int(told):
        limits.append(int(told) << 20)
    return limits


def host_available(*, root: Path = Path("/")) -> int:
    """What could still be taken before the machine, or a cgroup, is full."""
    lines = _read(root / "proc/meminfo").splitlines()
    free = [int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")]
    return min([*free, *(limit - used for limit, used in _cgroups(root))], default=0)


def _cgroups(root: Path) -> Iterator[tuple[int, int]]:
    """(limit, used without what can be dropped) of each cgroup above this process with a limit."""
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, name = rest.partition(":")
        if controllers == "":
            base, files = root / "sys/fs/cgroup", ("memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            base = root / "sys/fs/cgroup/memory"
            files = ("memory.limit_in_bytes", "memory.usage_in_bytes")
        else:
            continue
        folder = base / name.lstrip("/")
        for place in [folder, *folder.parents]:
            limit = _read(place / files[0]).strip()
            if limit.isdecimal() and int(limit) < _UNLIMITED:
                used = _read(place / files[1]).strip()
                yield int(limit), (int(used) if used.isdecimal() else 0) - _droppable(place)
            if place == base:
                break


def _droppable(place: Path) -> int:
    """File pages nobody uses: the kernel takes them back before a limit hurts."""
    for line in _read(place / "memory.stat").splitlines():
        name, _, value = line.partition(" ")
        if name in ("inactive_file", "total_inactive_file"):
            return int(value)
    return 0


def _read(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text()
    return ""


# -- one step -------------------------------------------------------------------------------------


class Footprint:
    """Measures one step of an attempt's stage."""

    def __init__(
        self, model: nn.Module, optimizer: Any, *, device: torch.device, hooks: bool = True
    ) -> None:
        """`hooks`: activations may be looked at on a CPU. (A compiled model would be compiled
        again.)"""
        self._model, self._optimizer, self._device = model, optimizer, device
        self._is_hooked = hooks and device.type != "cuda"
        self._gradients = 0
        self._batch = 0
        self._saved: Saved | None = None

    @contextlib.contextmanager
    def measured(self) -> Iterator[None]:
        """Around the step; its micro-batches go through `watch`."""
        known: set[int] = set()
        count_bytes(self._weights(), seen=known)
        with contextlib.ExitStack() as stack:
            register = getattr(self._optimizer, "register_step_pre_hook", None)
            if register is not None:
                stack.callback(register(self._before_update).remove)
            if self._is_hooked:
                self._saved = Saved(known)
                stack.enter_context(self._saved.hooked())
            yield

    def watch(self, batches: Iterator[MicroBatch]) -> Iterator[MicroBatch]:
        """The same micro-batches."""
        for batch in batches:
            seen: set[int] = set()
            with contextlib.suppress(Exception):  # a batch of any kind
                self._batch = max(self._batch, count_bytes(tensors_in(batch.data), seen=seen))
            if self._saved is not None:
                self._saved.begin_batch(seen)
            yield batch

    def _before_update(self, *_: Any) -> None:
        """All gradients are there now."""
        grads = [p.grad for p in self._trained() if p.grad is not None]
        self._gradients = count_bytes(grads)

    def _trained(self) -> list[Tensor]:
        return [p for group in self._optimizer.param_groups for p in group["params"]]

    def _weights(self) -> list[Tensor]:
        return [*self._model.parameters(), *self._model.buffers()]

    def tensors(self) -> Tensors:
        """After the step, when the optimizer has its state."""
        seen: set[int] = set()
        weights = count_bytes(self._weights(), seen=seen)
        state = tensors_in(dict(getattr(self._optimizer, "state", {})))
        here = [held for held in state if held.device.type == self._device.type]  # not on the host
        return Tensors(
            weights=weights,
            gradients=self._gradients,
            optimizer=count_bytes(here, seen=seen),
            batch=self._batch,
            activations=None if self._saved is None else self._saved.most,
        )

    def device(self, *, save_buffers: int, host_total: int) -> DeviceMemory:
        seen = self.tensors()
        if self._device.type == "cuda":
            free, total = torch.cuda.mem_get_info(self._device)
            peak = torch.cuda.max_memory_allocated(self._device)
            return sum_device(seen, peak_tensors=peak, used=total - free, total=total)
        # On a CPU: this process at its largest, without the copies for saves.
        used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - save_buffers
        return sum_device(seen, peak_tensors=None, used=used, total=host_total)


def loader_bytes() -> int:
    """Of the processes that this one has started; what they share with it counts for them too."""
    both = ProcessReader().read([os.getpid()]).rss_bytes
    return max(0, both - rank_rss_bytes())


def as_facts(device: DeviceMemory, host: HostMemory) -> dict[str, dict[str, int | None]]:
    return {"device": asdict(device), "host": asdict(host)}
