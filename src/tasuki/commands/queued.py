"""Which jobs of Slurm work, or will work, on which run: the queue joined with the job folders."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tasuki.clock import Clock
from tasuki.runs.atomic import read_json
from tasuki.runs.control import is_wanted
from tasuki.runs.jobs import JobFolder, job_folder, list_jobs
from tasuki.runs.runs import RunFolder
from tasuki.slurm.client import Slurm, SlurmError
from tasuki.slurm.queue import FRESH_S, Queue, read_queue
from tasuki.slurm.submit import known_number
from tasuki.slurm.succession import COMMENT
from tasuki.slurm.text import QueuedJob, UnknownWords

_SETTLED_S = 5.0
"""Clocks of hosts differ a little, and a number is written after the job is in the queue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunsJob:
    """A job in the queue, and the folder it belongs to."""

    folder: JobFolder
    queued: QueuedJob

    @property
    def number(self) -> str:
        return self.queued.number

    @property
    def is_running(self) -> bool:
        return self.queued.state in ("RUNNING", "COMPLETING", "CONFIGURING", "SUSPENDED")


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """All jobs that Slurm knows of a folder of runs, by run."""

    by_run: Mapping[str, tuple[RunsJob, ...]]
    last: Mapping[str, tuple[JobFolder, str]] = field(default_factory=dict)
    """The newest job of each run that was ever submitted, in the queue or not."""
    at: float | None = None
    problem: str = ""

    def of(self, run: RunFolder) -> tuple[RunsJob, ...]:
        return self.by_run.get(run.name, ())


NOTHING = Known(by_run={})


def uses_slurm(runs: Path) -> bool:
    """Was anything of this folder ever given to Slurm?"""
    return any(job.order.exists() for job in list_jobs(runs))


def look_or_say(
    slurm: Slurm, runs: Path, *, user: str, clock: Clock, fresh_s: float = FRESH_S
) -> Known:
    """For who only wants to know: where Slurm cannot be asked, what is known from files."""
    try:
        return look(slurm, runs, user=user, clock=clock, fresh_s=fresh_s)
    except (SlurmError, UnknownWords) as error:
        return Known(by_run={}, last=last_submitted(runs), problem=error.message)


def look(slurm: Slurm, runs: Path, *, user: str, clock: Clock, fresh_s: float = FRESH_S) -> Known:
    queue = read_queue(slurm, runs, user=user, clock=clock, fresh_s=fresh_s)
    return join(queue, runs)


def join(queue: Queue, runs: Path) -> Known:
    """By the comment of each job; those of other folders have none here."""
    found: dict[str, list[RunsJob]] = {}
    for queued in queue.jobs:
        if not queued.comment.startswith(COMMENT):
            continue
        folder = job_folder(runs, queued.comment.removeprefix(COMMENT))
        if "/" in folder.name or not folder.order.exists():
            continue
        for name in runs_of(folder):
            found.setdefault(name, []).append(RunsJob(folder=folder, queued=queued))
    return Known(
        by_run={name: tuple(jobs) for name, jobs in found.items()},
        last=last_submitted(runs),
        at=queue.at,
        problem=queue.problem,
    )


def runs_of(job: JobFolder) -> list[str]:
    lanes: list[dict[str, Any]] = read_json(job.lanes)["lanes"]
    return list(dict.fromkeys(item["run"] for lane in lanes for item in lane["items"]))


def last_stage(job: JobFolder, run: str) -> str | None:
    """The stage with which the run's work in this job ends, where more would be left to do."""
    items = [item for lane in read_json(job.lanes)["lanes"] for item in lane["items"]]
    own = [item for item in items if item["run"] == run]
    ends = [item["until"] for item in own if not item["continued"]]
    return ends[-1] if ends and None not in ends else None


def is_packed(job: JobFolder) -> bool:
    """Do its runs have lanes of their own, so that one of them may end while the others go on?"""
    value = read_json(job.lanes)
    items = [item for lane in value["lanes"] for item in lane["items"]]
    return value.get("nodes", 1) == 1 and all(item.get("id") is not None for item in items)


def is_shared(run: RunFolder, job: JobFolder) -> bool:
    """Does the job work for another run that is still wanted?"""
    others = [RunFolder(run.path.parent / name) for name in runs_of(job) if name != run.name]
    return any(is_wanted(other) for other in others)


def is_gone(known: Known, job: JobFolder) -> bool:
    """Was it submitted, and is it not in a queue that was read well after that?"""
    if known.problem or known.at is None:
        return False
    return job.submitted.stat().st_mtime < known.at - _SETTLED_S


def last_submitted(runs: Path) -> dict[str, tuple[JobFolder, str]]:
    """The newest job that was ever submitted for each run, with its number."""
    found: dict[str, tuple[JobFolder, str]] = {}
    for job in sorted(list_jobs(runs), key=_age):
        number = known_number(job)
        if number is not None:
            found |= dict.fromkeys(runs_of(job), (job, number))
    return found


def _age(job: JobFolder) -> tuple[float, str]:
    try:
        return job.submitted.stat().st_mtime, job.name
    except OSError:
        return 0.0, job.name
