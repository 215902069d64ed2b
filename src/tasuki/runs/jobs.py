"""The job folder: what one allocation knows, over all its starts.

A job's starts are numbered apart from the attempts of its runs: a requeued job starts again in the
same folder. `lanes.json` is plain JSON, so that the supervisor needs no parser but Python's own.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasuki.runs.atomic import (
    FOLDER_MODE,
    FORMAT,
    make_folder,
    read_json,
    read_json_or_none,
    shaped,
    translated,
    write_json,
)

PLANS = ".plans"
JOBS = ".jobs"
HISTORY = ".history"


@dataclass(frozen=True, slots=True)
class JobFolder:
    """`runs/.jobs/<plan-id>-01`."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def runs(self) -> Path:
        """The folder that holds all runs."""
        return self.path.parent.parent

    @property
    def lanes(self) -> Path:
        return self.path / "lanes.json"

    @property
    def submitted(self) -> Path:
        """The number under which Slurm knows this job."""
        return self.path / "slurm.json"

    @property
    def order(self) -> Path:
        """How this job is given to Slurm: after which jobs, with which options."""
        return self.path / "sbatch.json"

    @property
    def withdrawn(self) -> Path:
        """Exists when the job must not start: it was ordered, not submitted, and then its runs were
        planned again."""
        return self.path / "withdrawn.json"

    def slurm_log(self, number: str) -> Path:
        """What Slurm itself, the shell and a supervisor that cannot begin say."""
        return self.path / f"slurm-{number}.log"

    def comes_back(self, number: str, restarts: int) -> Path:
        """For the script: Slurm brings this life of the job back by itself."""
        return self.path / f"comes-back.{number}.{restarts}"

    @property
    def starts(self) -> Path:
        return self.path / "starts"

    def origin(self, start: int) -> Path:
        """Which job of Slurm, in which of its lives, a start belongs to."""
        return self.starts / str(start) / "origin.json"

    def phase(self, start: int, number: int) -> Path:
        """What node 0 has its ranks do, for the supervisors of the other nodes."""
        return self.path / f"phase.{start}.{number}.json"

    def report(self, start: int, number: int, node: int) -> Path:
        """How the ranks of another node ended that phase."""
        return self.path / f"report.{start}.{number}.{node}.json"

    @property
    def deadline(self) -> Path:
        """When the scheduler ends this start; rewritten when it is extended."""
        return self.path / "deadline.json"

    def notice(self, start: int) -> Path:
        """Why the local scheduler is about to end this start."""
        return self.path / f"notice.{start}.json"

    def outcome(self, start: int) -> Path:
        return self.path / f"outcome.{start}.json"

    def log(self, start: int) -> Path:
        return self.path / f"supervisor.{start}.log"

    def claim(self, start: int, lane: int) -> Path:
        """The claim of the run that a lane works on, for the ranks of other nodes."""
        return self.path / f"claim.{start}.{lane}.json"

    def rendezvous(self, run: str, claim: int, number: int) -> Path:
        """Where the ranks of one phase meet."""
        return self.path / f"rendezvous.{run}.{claim}.{number}.json"


def job_folder(runs: Path, name: str) -> JobFolder:
    return JobFolder(runs / JOBS / name)


def begin_start(job: JobFolder, origin: Mapping[str, Any] | None = None) -> int:
    """Number a start of this job; two starts never get the same number."""
    make_folder(job.starts)
    while True:
        number = last_start(job) + 1
        with translated(job.starts):
            try:
                (job.starts / str(number)).mkdir(mode=FOLDER_MODE)
            except FileExistsError:
                continue
        if origin is not None:
            write_json(job.origin(number), {"format": FORMAT, **origin})
        return number


def find_start(job: JobFolder, origin: Mapping[str, Any]) -> int | None:
    """The newest start of this origin."""
    for number in range(last_start(job), 0, -1):
        told = read_json_or_none(job.origin(number)) or {}
        if all(told.get(key) == value for key, value in origin.items()):
            return number
    return None


def last_start(job: JobFolder) -> int:
    with translated(job.starts):
        try:
            names = os.listdir(job.starts)
        except FileNotFoundError:
            return 0
    return max((int(name) for name in names if name.isdecimal()), default=0)


def write_outcome(job: JobFolder, start: int, value: dict[str, Any]) -> None:
    write_json(job.outcome(start), {"format": FORMAT, "job": job.name, "start": start, **value})


def read_outcome(job: JobFolder, start: int) -> dict[str, Any] | None:
    return read_json_or_none(job.outcome(start))


def count_gpus(lanes: Mapping[str, Any]) -> int:
    """Of a node of the job, by its `lanes.json`."""
    if lanes.get("gpus") is not None:
        return max(1, int(lanes["gpus"]))
    return max((gpu + 1 for lane in lanes["lanes"] for gpu in lane["gpus"]), default=1)


def make_smaller(job: JobFolder, *, gpus: int, cpus: int | None) -> bool:
    """Rewrite the lanes of a packed job that goes on with fewer GPUs: which item runs on which of
    them is found at its start. False: it is not packed, and stays as it is."""
    value = read_json(job.lanes)
    with shaped(job.lanes):
        items = [item for lane in value["lanes"] for item in lane["items"]]
        if any(item.get("id") is None for item in items):
            return False
        lanes = [{**lane, "gpus": list(range(len(lane["gpus"])))} for lane in value["lanes"]]
    smaller = {"gpus": gpus, "cpus": value.get("cpus") if cpus is None else cpus, "lanes": lanes}
    write_json(job.lanes, {**value, **smaller})
    return True


def plan_path(runs: Path, plan_id: str) -> Path:
    return runs / PLANS / f"{plan_id}.json"


def queue_path(runs: Path, user: str) -> Path:
    """What Slurm last said of a user's queue."""
    return runs / JOBS / f"queue.{user}.json"


def submit_lock(runs: Path) -> Path:
    """Who submits holds it."""
    return runs / JOBS / "submit.lock"


def list_jobs(runs: Path) -> list[JobFolder]:
    """All that were ever written, by plan, and in its order."""
    with translated(runs / JOBS):
        try:
            names = sorted(os.listdir(runs / JOBS), key=_by_number)
        except FileNotFoundError:
            return []
    found = [JobFolder(runs / JOBS / name) for name in names]
    return [job for job in found if job.lanes.exists()]


def _by_number(name: str) -> tuple[str, int, str]:
    """The hundredth job comes after the eleventh."""
    plan, _, number = name.rpartition("-")
    return plan, int(number) if number.isdecimal() else 0, name
