"""What this machine offers, without torch."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from tasuki.spec.resolved import ResolvedCluster


@dataclass(frozen=True, slots=True)
class Machine:
    device: str
    """cpu or cuda."""
    gpus: int
    cpus: int
    devices: tuple[str, ...] = ()
    """The GPUs as CUDA_VISIBLE_DEVICES names them."""


def look_around(environment: dict[str, str]) -> Machine:
    cpus = len(os.sched_getaffinity(0))
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        devices = tuple(part for part in visible.split(",") if part and part != "-1")
    else:
        found = [p.name[6:] for p in Path("/dev").glob("nvidia[0-9]*") if p.name[6:].isdecimal()]
        devices = tuple(sorted(found, key=int))
    return Machine("cuda" if devices else "cpu", len(devices), cpus, devices)


def device_for(cluster: ResolvedCluster, machine: Machine) -> str:
    """`gpu: cpu` counts CPU slots; without a GPU here that is the default."""
    if cluster.gpu == "cpu" or (cluster.gpu is None and machine.gpus == 0):
        return "cpu"
    return "cuda"


def cpus_for(cluster: ResolvedCluster, machine: Machine) -> int:
    return cluster.cpus or machine.cpus


def memory_here() -> int:
    """Bytes of this machine."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def gpu_here(*, root: Path = Path("/proc/driver/nvidia/gpus")) -> str | None:
    """What the driver calls the first GPU of this machine; None: no driver tells."""
    for file in sorted(root.glob("*/information")):
        for line in file.read_text(errors="replace").splitlines():
            if line.startswith("Model:"):
                return line.partition(":")[2].strip() or None
    return None


def processor_here(device: str) -> str:
    """The model of what steps are computed on, and how many CPUs feed it."""
    cpus = len(os.sched_getaffinity(0))
    model = gpu_here() if device == "cuda" else _cpu_here()
    return f"{model or 'unknown'}, {cpus} CPUs"


def _cpu_here() -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        return None
    told = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return told[0] if told else None
