"""Write a plan and a folder for each of its jobs: all that a supervisor needs to know.

The backends start what is written.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasuki.clock import Clock
from tasuki.commands.items import PlannedItem, items_of
from tasuki.commands.machine import device_for
from tasuki.commands.plan import PlanRequest
from tasuki.planning.values import Job, Piece, Plan
from tasuki.runs.atomic import FORMAT, make_folder, write_json
from tasuki.runs.claims import highest_claim
from tasuki.runs.events import EventLog
from tasuki.runs.jobs import JobFolder, job_folder, plan_path
from tasuki.runs.runs import RunFolder
from tasuki.spec.resolved import ResolvedCluster

_IN_CONTAINER = "python3"


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenJob:
    job: Job
    folder: JobFolder
    runs: tuple[RunFolder, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What a backend adds to a job."""

    backend: str
    grace_s: float
    """From the signal to the kill."""
    surplus_s: float = 0.0
    partition_grace_s: float = 0.0
    """Before that, for a job that is preempted."""


def write_jobs(
    plan: Plan, folders: Mapping[str, RunFolder], request: PlanRequest, terms: Terms, clock: Clock
) -> list[WrittenJob]:
    if not plan.jobs:
        return []
    runs = make_folder(Path(request.spec.runs))
    path = plan_path(runs, plan.id)
    make_folder(path.parent)
    write_json(path, plan.as_json())
    written = []
    last = {name: n for n, job in enumerate(plan.jobs) for name in experiments_of(job)}
    for number, job in enumerate(plan.jobs):
        folder = job_folder(runs, job.name)
        make_folder(folder.path)
        later = [name for name in experiments_of(job) if last[name] > number]
        write_json(folder.lanes, _lanes(job, plan.id, folders, later, request, terms))
        names = experiments_of(job)
        for name in names:
            stages = list(dict.fromkeys(p.stage for p in pieces_of(job) if p.experiment == name))
            told = {stage: plan.predictions.get(f"{name}/{stage}") for stage in stages}
            _log_submitted(folders[name], folder, told, clock)
        own = tuple(folders[name] for name in names)
        written.append(WrittenJob(job=job, folder=folder, runs=own))
    return written


def pieces_of(job: Job) -> list[Piece]:
    return [piece for lane in job.lanes for piece in lane.stages]


def experiments_of(job: Job) -> list[str]:
    return list(dict.fromkeys(piece.experiment for piece in pieces_of(job)))


def container_words(cluster: ResolvedCluster, *, device: str, folder: str) -> list[str]:
    """An image is run by apptainer; several words are a command of one's own."""
    if not cluster.container:
        return []
    words = shlex.split(cluster.container)
    if len(words) > 1:
        return words
    gpus = ["--nv"] if device == "cuda" else []
    return ["apptainer", "exec", *gpus, "--bind", folder, "--pwd", folder, words[0]]


def _lanes(
    job: Job,
    plan_id: str,
    folders: Mapping[str, RunFolder],
    later: Sequence[str],
    request: PlanRequest,
    terms: Terms,
) -> dict[str, Any]:
    """`lanes.json`."""
    spec = request.spec
    device = device_for(spec.cluster, request.machine)
    container = container_words(spec.cluster, device=device, folder=spec.folder)
    found = items_of(job, request)
    lanes = []
    for number, lane in enumerate(job.lanes):
        items = [_item(item, job, folders, later) for item in found if item.lane == number]
        lanes.append({"gpus": list(lane.gpus), "items": items})
    return {
        "format": FORMAT,
        "plan": plan_id,
        "after": list(job.after),
        "backend": terms.backend,
        "python": spec.cluster.python or (_IN_CONTAINER if container else request.python),
        "container": container,
        "folder": spec.folder,
        "device": device,
        "gpu": spec.cluster.gpu,
        "nodes": spec.cluster.nodes if terms.backend == "slurm" else 1,
        "gpus": job.gpus,
        "cpus": job.cpus,
        "limit_s": job.limit_s,
        "surplus_s": terms.surplus_s,
        "grace_s": terms.grace_s,
        "partition_grace_s": terms.partition_grace_s,
        "reserve_s": job.reserve_s,
        "requeue": spec.cluster.requeue,
        "profile": request.is_profiled,
        "price_per_gpu_hour": spec.cluster.price_per_gpu_hour,
        "lanes": lanes,
    }


def _item(
    item: PlannedItem, job: Job, folders: Mapping[str, RunFolder], later: Sequence[str]
) -> dict[str, Any]:
    is_continued = item.experiment in later
    is_limited = is_continued or item.is_limited
    return {
        "run": folders[item.experiment].name,
        "until": item.stage if is_limited else None,
        "continued": is_continued,
        "id": item.id,
        "after": list(item.after),
        "seconds": item.seconds,
        "start_s": item.start_s,
        "cpus": item.cpus or job.cpus,
        "trains_only": item.trains_only,
    }


def _log_submitted(
    run: RunFolder,
    job: JobFolder,
    predictions: Mapping[str, Mapping[str, Any] | None],
    clock: Clock,
) -> None:
    """With what was predicted of the stages, so that the next prediction can learn from it."""
    claim = highest_claim(run)
    log = EventLog(run, claim=claim, node=0, who=f"run-{job.name}", clock=clock)
    log.add("submitted", job=job.name)
    for stage, predicted in predictions.items():
        if predicted is not None:
            log.add("predicted", stage=stage, **predicted)
    log.close()
