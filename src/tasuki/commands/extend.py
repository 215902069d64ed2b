"""`tasuki extend`: more time for the job that works on a run; `+2h` adds, `24h` sets.

A run needs none to be finished: what its job cannot do, the next one does. It is for the last hour
before a deadline, where a job that ends would have to queue again.
"""

from __future__ import annotations

from typing import Any

from tasuki.clock import Clock
from tasuki.commands.cancel import Controller
from tasuki.commands.queued import look, uses_slurm
from tasuki.errors import RunError, UsageError
from tasuki.jobs.local_allocation import read_deadline, set_deadline
from tasuki.runs.atomic import FORMAT
from tasuki.runs.jobs import job_folder
from tasuki.runs.runs import RunFolder
from tasuki.runs.view import live_holder
from tasuki.slurm.client import SlurmRefused
from tasuki.units import Duration, format_seconds


def extend_run(
    run: RunFolder,
    amount: str,
    *,
    clock: Clock,
    controller: Controller | None = None,
    is_dry: bool = False,
) -> dict[str, Any]:
    adds = amount.startswith("+")
    seconds = Duration.parse(amount.removeprefix("+")).seconds
    runs = run.path.parent
    if controller is not None and uses_slurm(runs):
        known = look(controller.slurm, runs, user=controller.user, clock=clock, fresh_s=0.0)
        jobs = [job for job in known.of(run) if job.is_running] or list(known.of(run))[:1]
        if jobs:
            limit = None
            if not is_dry:
                limit = _extend_slurm(controller, jobs[0].number, seconds, adds=adds)
            return _answer(run, jobs[0].number, amount, limit)
    holder = live_holder(run, now=clock.wall())
    if holder is None or not holder.is_alive() or not holder.job:
        raise RunError(
            f"no job works on run `{run.name}` here",
            hint="`tasuki status` shows how it stands; `--time` of `submit` is for the next job",
        )
    job = job_folder(runs, holder.job)
    ends = read_deadline(job, holder.start)
    if ends is None:
        raise UsageError(
            f"the job of run `{run.name}` has no time limit", hint="there is nothing to extend"
        )
    began = clock.monotonic() - (clock.wall() - holder.at)
    ends_at = ends + seconds if adds else began + seconds
    _refuse_less(ends_at - began, ends - began)
    if not is_dry:
        set_deadline(job, start=holder.start, ends_monotonic=ends_at)
    return _answer(run, holder.job, amount, ends_at - began)


def _extend_slurm(controller: Controller, number: str, seconds: float, *, adds: bool) -> float:
    """The new limit."""
    shown = controller.slurm.show(number)
    if shown is None or shown.limit_s is None:
        raise UsageError(f"job {number} has no time limit", hint="there is nothing to extend")
    limit = shown.limit_s + seconds if adds else seconds
    _refuse_less(limit, shown.limit_s)
    try:
        controller.slurm.set_limit(number, str(max(1, round(limit / 60))))
    except SlurmRefused as error:
        denied = any(words in error.message for words in ("ermission", "denied"))
        hint = (
            "on most clusters only administrators may lengthen a job; nothing is lost at its "
            "limit: the run goes on in the next job"
            if denied
            else error.hint
        )
        raise RunError(f"job {number} cannot be extended: {error.message}", hint=hint) from error
    return limit


def _refuse_less(limit: float, now: float) -> None:
    if limit < now:
        raise UsageError(
            f"the job has {format_seconds(now)}: {format_seconds(limit)} would shorten it",
            hint=f"`+{format_seconds(limit)}` adds; `tasuki cancel` ends a run, saved",
        )


def _answer(run: RunFolder, job: str, amount: str, limit: float | None) -> dict[str, Any]:
    facts = {"experiment": run.name, "job": job, "amount": amount}
    return {"format": FORMAT, **facts, "limit_s": limit}
