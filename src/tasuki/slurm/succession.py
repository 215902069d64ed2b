"""A job that cannot be requeued, or would come back too large, is carried on by another one, which
waits for its end.

Submitted from inside the job, from the order that lies in its folder; once, however often it is
tried: a number is written down, and a lost one is found in the queue by the job's comment.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Sequence

from tasuki.errors import StoreError
from tasuki.runs.atomic import FORMAT, read_json, read_json_or_none, shaped, write_json
from tasuki.runs.jobs import JobFolder, count_gpus, list_jobs, make_smaller
from tasuki.slurm.client import Slurm, SlurmError, SlurmSilent

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
    _have_others_wait(slurm, job)
    return number


def submit_smaller(
    slurm: Slurm, job: JobFolder, *, gpus: int, cpus: int | None, after: str, user: str
) -> str | None:
    """A successor that asks for less. None: this job cannot be made smaller.

    Its files are rewritten first: one that is killed in between leaves a job that uses less than it
    has. Where Slurm refuses, they are put back."""
    order, lanes = read_json(job.order), read_json(job.lanes)
    with shaped(job.order):
        before, options = int(order.get("gpus") or count_gpus(lanes)), list(order["options"])
    if not make_smaller(job, gpus=gpus, cpus=cpus):
        return None
    asked = smaller_options(options, gpus=gpus, before=before, cpus=cpus)
    write_json(job.order, {**order, "gpus": gpus, "options": asked})
    try:
        return submit_successor(slurm, job, after=after, user=user)
    except SlurmError:
        write_json(job.order, order)
        write_json(job.lanes, lanes)
        raise


def smaller_options(
    options: Sequence[str], *, gpus: int, before: int, cpus: int | None
) -> list[str]:
    """What sbatch is told for `gpus` of the GPUs that the job had before; memory in proportion."""
    return [_smaller(option, gpus, before, cpus) for option in options]


def _smaller(option: str, gpus: int, before: int, cpus: int | None) -> str:
    key, _, value = option.partition("=")
    match key:
        case "--gres":
            return f"{key}={re.sub(r':[0-9]+$', f':{gpus}', value)}"
        case "--cpus-per-task" if cpus is not None:
            return f"{key}={cpus}"
        case "--mem" if (size := re.fullmatch(r"([0-9]+)M", value)) is not None:
            return f"{key}={math.ceil(int(size[1]) * min(1.0, gpus / before))}M"
    return option


def _have_others_wait(slurm: Slurm, job: JobFolder) -> None:
    """Jobs of the plan that wait for this one's end wait for its successor instead."""
    numbers = {one.name: _number_of(one) for one in list_jobs(job.runs)}
    for other in list_jobs(job.runs):
        names = (read_json_or_none(other.order) or {}).get("after", ())
        number, after = numbers[other.name], [numbers.get(name) for name in names]
        if job.name not in names or number is None or None in after:
            continue
        with contextlib.suppress(SlurmError):  # it has begun already, or left the queue
            slurm.set_dependency(number, "afterany:" + ":".join(map(str, after)))


def _number_of(job: JobFolder) -> str | None:
    value = read_json_or_none(job.submitted)
    return None if value is None else str(value.get("number"))


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
