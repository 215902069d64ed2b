"""`tasuki cancel`: end a run, saved. It stays cancelled until a person says go on."""

from __future__ import annotations

import contextlib
import os
import signal
from dataclasses import dataclass
from typing import Any

from tasuki.clock import Clock
from tasuki.commands.queued import NOTHING, Known, is_packed, is_shared, look, uses_slurm
from tasuki.commands.status import state_of
from tasuki.errors import RunError
from tasuki.jobs.local_allocation import give_cause
from tasuki.runs.atomic import FORMAT
from tasuki.runs.attempts import Holder
from tasuki.runs.claims import highest_claim
from tasuki.runs.control import Word, say
from tasuki.runs.jobs import job_folder
from tasuki.runs.runs import RunFolder
from tasuki.runs.values import Cause
from tasuki.runs.view import live_holder
from tasuki.slurm.client import Slurm, SlurmError, SlurmRefused
from tasuki.slurm.queue import forget_queue

_LOOK_EVERY_S = 0.1
_ASK_EVERY_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Controller:
    """Slurm, where jobs of these runs may be in its queue."""

    slurm: Slurm
    user: str


def cancel_run(
    run: RunFolder,
    *,
    clock: Clock,
    controller: Controller | None = None,
    wait_s: float = 90.0,
    is_dry: bool = False,
) -> dict[str, Any]:
    """First the word, so that nobody starts it again; then the notice to who works on it."""
    state, _ = state_of(run, now=clock.wall())
    if state == "complete":
        raise RunError(
            f"run `{run.name}` is complete: there is nothing to cancel",
            hint="`--new` of `tasuki run` and `tasuki submit` begins another one",
        )
    holder = live_holder(run, now=clock.wall())
    if not is_dry and state not in ("cancelled", "held", "failed"):  # only `resume` lifts a hold
        say(run, Word.CANCEL, reason="cancelled by a person", claim=highest_claim(run))
    known = _look(run, controller, clock)
    if is_dry:
        return _answer(run, state, holder, known)
    if known.of(run) and controller is not None:
        _end_jobs(run, known, controller, clock, wait_s)
        forget_queue(run.path.parent, controller.user)
    elif holder is not None and holder.is_alive():
        _end_here(run, holder, clock, wait_s)
    return _answer(run, state_of(run, now=clock.wall())[0], holder, known)


def _look(run: RunFolder, controller: Controller | None, clock: Clock) -> Known:
    runs = run.path.parent
    if controller is None or not uses_slurm(runs):
        return NOTHING
    try:
        return look(controller.slurm, runs, user=controller.user, clock=clock, fresh_s=0.0)
    except SlurmError as error:
        error.message = f"run `{run.name}` is to end, but its job cannot be told: {error.message}"
        error.hint = "it will not be started again; `tasuki cancel` again when Slurm answers"
        raise


def _end_here(run: RunFolder, holder: Holder, clock: Clock, wait_s: float) -> None:
    if holder.job:  # else a script that is its own supervisor (`tasuki.open_run`)
        job = job_folder(run.path.parent, holder.job)
        if is_packed(job) and is_shared(run, job):
            _wait_for_lane(run, clock, wait_s)
            return
        # Other runs of the same job are interrupted too; the job comes back for them.
        give_cause(job, start=holder.start, cause=Cause.CANCELLED)
    with contextlib.suppress(ProcessLookupError):
        os.kill(holder.pid, signal.SIGTERM)
    until = clock.monotonic() + wait_s
    while holder.is_alive() and clock.monotonic() < until:
        clock.sleep(_LOOK_EVERY_S)


def _wait_for_lane(run: RunFolder, clock: Clock, wait_s: float) -> None:
    """The job's supervisor looks for the word that was said: only this run's lane ends."""
    until = clock.monotonic() + wait_s
    while live_holder(run, now=clock.wall()) is not None and clock.monotonic() < until:
        clock.sleep(_LOOK_EVERY_S)


def _end_jobs(
    run: RunFolder, known: Known, controller: Controller, clock: Clock, wait_s: float
) -> None:
    """Those that wait leave the queue. One that runs is told, and may take its time to save: a
    `scancel` would leave it no more than KillWait."""
    jobs = [job for job in known.of(run) if not is_shared(run, job.folder)]
    shared = [job for job in known.of(run) if job not in jobs and is_packed(job.folder)]
    for job in reversed(jobs):  # from the last: none must start because another is gone
        with contextlib.suppress(SlurmRefused):  # it has just ended
            if job.is_running:
                controller.slurm.signal(job.number, "TERM")
            else:
                controller.slurm.cancel(job.number)
    until = clock.monotonic() + wait_s
    running = [job for job in jobs if job.is_running]
    while running and clock.monotonic() < until:
        clock.sleep(_ASK_EVERY_S)
        left = {job.number: job.state for job in controller.slurm.queue(controller.user)}
        for number in [job.number for job in running if left.get(job.number) == "PENDING"]:
            with contextlib.suppress(SlurmRefused):  # requeued before it heard us
                controller.slurm.cancel(number)
        running = [job for job in running if left.get(job.number, "PENDING") != "PENDING"]
    for job in running:
        with contextlib.suppress(SlurmRefused):
            controller.slurm.cancel(job.number)
    if any(job.is_running for job in shared):
        _wait_for_lane(run, clock, wait_s)


def _answer(run: RunFolder, state: str, holder: Holder | None, known: Known) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "experiment": run.name,
        "state": state,
        "was_live": holder is not None,
        "jobs": [job.number for job in known.of(run)],
    }
