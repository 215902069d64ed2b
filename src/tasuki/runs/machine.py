"""What a lane's processes and GPUs use: values, the line people grep for, and the readers.

Plain /proc, since walking all processes of a large node (as psutil does for children) takes longer
than the whole reading may; NVML (extra `gpu`) is imported where GPUs are first read. No reader
raises: what cannot be read is left out and said. Decides nothing.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol, cast

GIB = 1 << 30
NO_NVML = 'pip install "tasuki[gpu]"'
_LONGEST_PROBLEM = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU of the lane."""

    used_bytes: int
    total_bytes: int
    util: float | None
    """In percent; None where the driver does not tell, as for a slice of a GPU (MIG)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuAnswer:
    """What could be read of the lane's GPUs, and why not all."""

    gpus: tuple[Gpu, ...] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Processes:
    """The ranks of a lane and all their children."""

    cpu_s: float
    """Since they began, with the children that are over: only its growth is of use."""
    rss_bytes: int
    """Summed: what processes share counts once for each."""
    num: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The figures of one line."""

    has_gpus: bool
    gpus: GpuAnswer
    samples_per_sec: float | None
    """None: nothing was told, as while a stage starts, validates or is evaluated."""
    cpu_percent: float
    """100 is one core."""
    rss_bytes: int
    host_bytes: int
    num_processes: int
    window_s: float
    """What CPU and samples are the mean of."""

    def facts(self) -> dict[str, Any]:
        """For the event: numbers as they are."""
        rate = self.samples_per_sec
        return {
            "gpus": [asdict(gpu) for gpu in self.gpus.gpus],
            "samples_per_sec": None if rate is None else round(rate, 3),
            "cpu_percent": round(self.cpu_percent, 1),
            "rss_bytes": self.rss_bytes,
            "host_bytes": self.host_bytes,
            "processes": self.num_processes,
            "window_s": round(self.window_s, 3),
        }

    def line(self) -> str:
        """For the log: memory is summed over the lane's GPUs, utilisation is their mean."""
        rate = "-" if self.samples_per_sec is None else _rate(self.samples_per_sec)
        parts = [
            *self._gpu_parts(),
            f"Samples/sec: {rate}",
            f"CPU: {self.cpu_percent:.0f}%",
            f"Host: {_of(self.rss_bytes, self.host_bytes)}",
        ]
        return f"[GPU Stats] {' | '.join(parts)}"

    def _gpu_parts(self) -> list[str]:
        gpus = self.gpus.gpus
        if not self.has_gpus:
            return ["no GPU"]
        if not gpus:
            return [f"GPU unknown ({self.gpus.problem})"]
        used, total = sum(gpu.used_bytes for gpu in gpus), sum(gpu.total_bytes for gpu in gpus)
        known = [gpu.util for gpu in gpus if gpu.util is not None]
        util = f"{sum(known) / len(known):.0f}%" if known else "-"
        return [f"Memory: {_of(used, total)}", f"Util: {util}"]


def _of(used: int, total: int) -> str:
    return f"{used / GIB:.1f}/{total / GIB:.0f}GB"


def _rate(rate: float) -> str:
    return f"{rate:.0f}" if rate >= 10 or rate == 0 else f"{rate:.2g}"


# -- processes --------------------------------------------------------------------------------


def host_bytes() -> int:
    """The memory of this machine."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


class ProcessReader:
    """Reads processes and all their children, for one lane again and again.

    The kernel lists children by the thread that started them. Main threads, and those that have
    children, are looked at in every reading, of the others so many that it stays short: with more
    of them than that, what one of them starts is found some readings later.
    """

    def __init__(self, *, most_threads: int = 128) -> None:
        self._most_threads = most_threads
        """20 µs each on a slow core."""
        self._parents = set[str]()
        self._seen = set[str]()
        """Threads that this round, which may take several readings, has looked at."""
        self._left = 0

    def read(self, pids: Sequence[int]) -> Processes:
        """One that is gone counts nothing; its parent has its CPU time as soon as it has waited
        for it."""
        ticks, pages = 0, 0
        todo, known = list(pids), set[int]()
        self._left = self._most_threads
        while todo:
            pid = todo.pop()
            with contextlib.suppress(OSError):  # gone meanwhile
                # Before the last bracket is the program's name, which may hold anything.
                fields = _content(f"/proc/{pid}/stat").rpartition(b")")[2].split()
                if pid not in known:
                    known.add(pid)
                    ticks += sum(map(int, fields[11:15]))  # own and waited-for, user and kernel
                    pages += int(fields[21])
                    todo += self._children(pid)
        if self._left:
            self._seen.clear()
        return Processes(
            cpu_s=ticks / os.sysconf("SC_CLK_TCK"),
            rss_bytes=pages * os.sysconf("SC_PAGE_SIZE"),
            num=len(known),
        )

    def _children(self, pid: int) -> list[int]:
        """None where the kernel keeps no such lists."""
        found: list[int] = []
        for thread in os.listdir(f"/proc/{pid}/task"):
            if thread == str(pid) or thread in self._parents or self._is_its_turn(thread):
                with contextlib.suppress(OSError):
                    own = _content(f"/proc/{pid}/task/{thread}/children").split()
                    found += map(int, own)
                    (self._parents.add if own else self._parents.discard)(thread)
        return found

    def _is_its_turn(self, thread: str) -> bool:
        if thread in self._seen or not self._left:
            return False
        self._left -= 1
        self._seen.add(thread)
        return True


def _content(path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, 65536)
    finally:
        os.close(fd)


# -- GPUs -------------------------------------------------------------------------------------


class Nvml(Protocol):
    """What is used of `pynvml`, under its names."""

    def nvmlInit(self) -> None:  # noqa: N802
        """Load the driver's library; needed once."""
        ...

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any:  # noqa: N802
        """A GPU by its number."""
        ...

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> Any:  # noqa: N802
        """A GPU, or a slice of one, by its UUID."""
        ...

    def nvmlDeviceGetMemoryInfo(self, handle: Any) -> Any:  # noqa: N802
        """Something with `used` and `total`, in bytes."""
        ...

    def nvmlDeviceGetUtilizationRates(self, handle: Any) -> Any:  # noqa: N802
        """Something with `gpu`, in percent."""
        ...


def load_nvml() -> Nvml:
    """The real one; ImportError where the extra is not installed."""
    import pynvml

    return cast(Nvml, pynvml)


class GpuReader:
    """Reads some GPUs, named as CUDA_VISIBLE_DEVICES names them: by index or by UUID.

    CUDA counts the fastest GPU first where CUDA_DEVICE_ORDER does not say otherwise, NVML goes by
    the bus: on a machine with several models an index may mean another GPU here. UUIDs never do.
    """

    def __init__(self, ids: Sequence[str], *, load: Callable[[], Nvml] = load_nvml) -> None:
        self._ids = tuple(ids)
        self._load = load
        self._nvml: Nvml | None = None

    def read(self) -> GpuAnswer:
        """Never raises; what failed is tried anew at the next reading."""
        try:
            nvml = self._nvml = self._nvml or self._begin()
        except ImportError:
            return GpuAnswer(problem=NO_NVML)
        except Exception as error:  # no driver, no library: NVML has an exception for each
            return GpuAnswer(problem=_words(error))
        gpus, problem = [], ""
        for name in self._ids:
            try:
                gpus.append(_read_gpu(nvml, name))
            except Exception as error:
                problem = f"{name}: {_words(error)}"
        if problem and not gpus:
            self._nvml = None  # a driver that was reloaded wants a new beginning
        return GpuAnswer(gpus=tuple(gpus), problem=problem)

    def _begin(self) -> Nvml:
        nvml = self._load()
        nvml.nvmlInit()
        return nvml


def _read_gpu(nvml: Nvml, name: str) -> Gpu:
    if name.isdecimal():
        handle = nvml.nvmlDeviceGetHandleByIndex(int(name))
    else:
        handle = nvml.nvmlDeviceGetHandleByUUID(name)
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    util = None
    with contextlib.suppress(Exception):  # slices have memory, but no utilisation of their own
        util = float(nvml.nvmlDeviceGetUtilizationRates(handle).gpu)
    return Gpu(used_bytes=int(memory.used), total_bytes=int(memory.total), util=util)


def _words(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text[:_LONGEST_PROBLEM]
