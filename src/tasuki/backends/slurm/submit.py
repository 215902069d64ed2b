"""Submit the jobs of a plan, each exactly once, however often this is tried.

A number that sbatch gave is written down at once. An answer that got lost is looked for in the
queue by the job's comment, which no other job has; so is what a process had submitted that was
killed before it could write. Called by actions/submit.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from tasuki.backends.slurm.script import (
    SCRIPT,
    SUBMIT,
    SlurmJob,
    render_script,
    render_submit,
    sbatch_options,
    submit_arguments,
)
from tasuki.clock import Clock
from tasuki.scheduler.slurm.client import Slurm, SlurmSilent
from tasuki.store.atomic import FORMAT, read_json_or_none, write_bytes, write_json
from tasuki.store.jobs import JobFolder

_LOOK_FOR_S = 30.0
_LOOK_EVERY_S = 5.0


def submit_jobs(
    slurm: Slurm,
    jobs: Sequence[SlurmJob],
    *,
    user: str,
    clock: Clock,
    on_submitted: Callable[[SlurmJob, str], None] = lambda _job, _number: None,
) -> dict[str, str]:
    """Numbers by name. `after` of each job names jobs that come before it here."""
    queued = {job.comment: job.number for job in slurm.queue(user)}
    numbers: dict[str, str] = {}
    for job in jobs:
        ready = replace(job, after=tuple(numbers[name] for name in job.after))
        numbers[job.name] = _submit_once(slurm, ready, queued, user=user, clock=clock)
        on_submitted(job, numbers[job.name])
    return numbers


def _submit_once(
    slurm: Slurm, job: SlurmJob, queued: Mapping[str, str], *, user: str, clock: Clock
) -> str:
    folder = JobFolder(job.folder)
    known = read_json_or_none(folder.submitted)
    if known is not None:
        return str(known["number"])
    write_bytes(job.folder / SCRIPT, render_script().encode())
    write_bytes(job.folder / SUBMIT, render_submit(job).encode())
    number = queued.get(job.comment) or _submit(slurm, job, user=user, clock=clock)
    write_json(folder.submitted, {"format": FORMAT, "number": number})
    return number


def _submit(slurm: Slurm, job: SlurmJob, *, user: str, clock: Clock) -> str:
    try:
        return slurm.submit([*sbatch_options(job), *submit_arguments(job)])
    except SlurmSilent:
        number = _look_for(slurm, job, user=user, clock=clock)
        if number is None:
            raise
        return number


def _look_for(slurm: Slurm, job: SlurmJob, *, user: str, clock: Clock) -> str | None:
    """The controller may have heard us and its answer got lost."""
    until = clock.monotonic() + _LOOK_FOR_S
    while True:
        for queued in slurm.queue(user):
            if queued.comment == job.comment:
                return queued.number
        if clock.monotonic() >= until:
            return None
        clock.sleep(_LOOK_EVERY_S)
