"""A job that cannot be requeued is carried on by another one, which waits for its end.

Submitted from inside the job, from the order that lies in its folder; once, however often it is
tried: a number is written down, and a lost one is found in the queue by the job's comment.
"""

from __future__ import annotations

from collections.abc import Sequence

from tasuki.errors import StoreError
from tasuki.scheduler.slurm.client import Slurm, SlurmSilent
from tasuki.store.atomic import FORMAT, read_json, read_json_or_none, shaped, write_json
from tasuki.store.jobs import JobFolder

COMMENT = "tasuki "
"""Begins the comment of every job of ours; the name of its folder follows."""


def submit_successor(slurm: Slurm, job: JobFolder, *, after: str, user: str) -> str:
    """The number of the job that goes on when job `after` has ended."""
    known = read_json_or_none(job.submitted) or {}
    if known.get("after") == after:
        return str(known["number"])
    order = read_json(job.order)
    with shaped(job.order):
        options, words = list(order["options"]), list(order["arguments"])
    if not options:
        raise StoreError(f"{job.order} is damaged: it has no options for sbatch")
    words = [*options, f"--dependency=afterany:{after}", *words]
    number = _queued(slurm, job, after, user) or _submit(slurm, words, job, after, user)
    before = [*known.get("before", ()), known["number"]] if "number" in known else []
    write_json(
        job.submitted, {"format": FORMAT, "number": number, "after": after, "before": before}
    )
    return number


def _submit(slurm: Slurm, words: Sequence[str], job: JobFolder, after: str, user: str) -> str:
    try:
        return slurm.submit(words)
    except SlurmSilent:  # it may have heard us
        number = _queued(slurm, job, after, user)
        if number is None:
            raise
        return number


def _queued(slurm: Slurm, job: JobFolder, after: str, user: str) -> str | None:
    """Another job of the same folder: nobody but us submits one while this one lives."""
    comment = f"{COMMENT}{job.name}"
    found = [queued for queued in slurm.queue(user) if queued.comment == comment]
    return next((queued.number for queued in found if queued.number != after), None)
