"""What a worker is to do, and what it works with."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from tasuki.errors import UsageError
from tasuki.loop.worker import Worker
from tasuki.runs.atomic import read_json
from tasuki.runs.jobs import JobFolder
from tasuki.runs.runs import RunFolder
from tasuki.spec.resolved import ResolvedExperiment, experiment_from_plain
from tasuki.train.orders import Orders


@dataclass(frozen=True, slots=True, kw_only=True)
class Task(Worker):
    """One phase of one run, on one rank."""

    orders: Orders
    job: JobFolder
    experiment: ResolvedExperiment
    folder: Path
    """The spec's folder."""
    spare_cpus: int
    """CPUs of this rank beside its threads: as many loader workers at the most."""
    is_profiled: bool = False
    """`--profile`: tell where a step's time goes."""


def read_experiment(run: RunFolder) -> tuple[ResolvedExperiment, Path]:
    value = read_json(run.spec)
    return experiment_from_plain(value["spec"]), Path(value["folder"])


def choose_device(job: JobFolder, rank: int) -> torch.device:
    """The GPU that the supervisor gave to this rank, or the CPU."""
    if read_json(job.lanes).get("device", "cpu") != "cuda":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise UsageError(
            "this job has a GPU, but torch cannot use it: torch.cuda.is_available() is false",
            hint="a torch built for CPUs, or a driver that is too old? `gpu: cpu` trains on CPUs",
        )
    index = 0 if torch.cuda.device_count() == 1 else rank % torch.cuda.device_count()
    torch.cuda.set_device(index)
    return torch.device("cuda", index)


def cpus_of_rank(job: JobFolder, *, world: int) -> int:
    """A rank's share of the CPUs of its node."""
    value = read_json(job.lanes)
    ranks_of_node = sum(len(lane["gpus"]) for lane in value["lanes"])
    world_of_node = world // int(value.get("nodes", 1))
    return max(1, int(value.get("cpus") or 1) // max(world_of_node, ranks_of_node))
