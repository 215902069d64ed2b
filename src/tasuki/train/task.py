"""What a worker is to do, and what it works with."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tasuki.clock import Clock
from tasuki.errors import UsageError
from tasuki.runtime.stopwatch import Stopwatch
from tasuki.runtime.watch import Watch
from tasuki.spec.resolved import ResolvedExperiment, ResolvedStage, experiment_from_plain
from tasuki.store.atomic import read_json
from tasuki.store.jobs import JobFolder
from tasuki.store.runs import RunFolder
from tasuki.telemetry.events import EventLog
from tasuki.train.orders import Orders
from tasuki.train.ranks import Ranks

_WARNING = "WARNING: "


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One phase of one run, on one rank."""

    orders: Orders
    run: RunFolder
    job: JobFolder
    experiment: ResolvedExperiment
    stage: ResolvedStage
    stage_number: int
    """1-based."""
    folder: Path
    """The spec's folder."""
    device: torch.device
    threads: int
    spare_cpus: int
    """CPUs of this rank beside its threads: as many loader workers at the most."""
    ranks: Ranks
    watch: Watch
    stopwatch: Stopwatch
    events: EventLog
    clock: Clock
    grace_s: float | None = None
    """How long a notice lasts."""
    is_profiled: bool = False
    """`--profile`: tell where a step's time goes."""

    @property
    def is_first(self) -> bool:
        return self.ranks.rank == 0

    def say(self, text: str) -> None:
        """A line for people, in the attempt's log; from rank 0 alone. A warning is an event too,
        which `tasuki run` shows."""
        if self.is_first:
            if text.startswith(_WARNING):
                self.events.add("warning", text=text.removeprefix(_WARNING))
            with contextlib.suppress(OSError):  # a full disk under the log must not end the run
                os.write(1, f"{text}\n".encode())

    def event(self, kind: str, **facts: Any) -> None:
        if self.is_first:
            self.events.add(kind, **facts)

    def doing(self, what: str) -> None:
        """What the start is at; whoever watches sees it. Not for what happens in every step."""
        self.event("doing", what=what)


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
