"""The queue of a user, asked for at most every few seconds, whoever asks.

`squeue` loads the one controller that everybody shares; a hundred `tasuki status` of a script, and
of a person who watches, must not. So the answer is kept in the runs' folder: who finds it fresh
uses it; one asks while the others wait for the file or take what is there.
"""

from __future__ import annotations

import contextlib
from dataclasses import asdict, dataclass
from pathlib import Path

from tasuki.clock import Clock
from tasuki.errors import StoreError
from tasuki.runs.atomic import FORMAT, read_json_or_none, shaped, write_json
from tasuki.runs.jobs import queue_path
from tasuki.runs.locks import locked
from tasuki.slurm.client import Slurm, SlurmError
from tasuki.slurm.text import QueuedJob

FRESH_S = 15.0
"""How old an answer may be before the controller is asked again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """What is known of a user's jobs."""

    jobs: tuple[QueuedJob, ...]
    at: float
    """When the controller said so."""
    problem: str = ""
    """Why there is nothing newer."""


def read_queue(
    slurm: Slurm, runs: Path, *, user: str, clock: Clock, fresh_s: float = FRESH_S
) -> Queue:
    """From the file while it is fresh, else from the controller. Raises what it raises where
    nothing was ever heard."""
    path = queue_path(runs, user)
    kept = _read(path)
    if kept is not None and _is_fresh(kept, clock, fresh_s):
        return kept
    with locked(path.with_suffix(".lock")):
        kept = _read(path)  # another one may just have asked
        if kept is not None and _is_fresh(kept, clock, fresh_s):
            return kept
        try:
            queue = Queue(jobs=tuple(slurm.queue(user)), at=clock.wall())
        except SlurmError as error:
            if kept is None:
                raise
            return Queue(jobs=kept.jobs, at=kept.at, problem=error.message)
        with contextlib.suppress(StoreError):  # a full disk costs the sharing, not the answer
            write_json(path, {"format": FORMAT, **asdict(queue)})
        return queue


def forget_queue(runs: Path, user: str) -> None:
    """Something was just submitted or cancelled: the next who asks hears of it."""
    with contextlib.suppress(OSError):
        queue_path(runs, user).unlink()


def _is_fresh(queue: Queue, clock: Clock, fresh_s: float) -> bool:
    return 0 <= clock.wall() - queue.at < fresh_s


def _read(path: Path) -> Queue | None:
    value = read_json_or_none(path)
    if value is None:
        return None
    with shaped(path):
        jobs = tuple(QueuedJob(**job) for job in value["jobs"])
        return Queue(jobs=jobs, at=float(value["at"]))
