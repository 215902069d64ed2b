"""`python -m tasuki.jobs JOB_DIR --after`: the job's processes are gone; what becomes of it?

Run by the job's script behind srun, and by the local backend where a supervisor left no outcome.
A supervisor that could say how it ended has written the outcome; for one that was killed it is
written here, as `relay` says. Under Slurm the job then comes back: by Slurm itself, by a requeue,
or, where that is refused, as a successor.

Never acts for another life of the job: who was taken for dead may still run when the job has long
been requeued elsewhere.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasuki.clock import Clock
from tasuki.errors import EXIT_DONE, EXIT_FAILED, EXIT_RESUME_ME, StoreError
from tasuki.jobs.commanded import has_worked
from tasuki.jobs.job import JobOrder
from tasuki.jobs.local_allocation import told_cause
from tasuki.jobs.place import Place
from tasuki.jobs.turn import remember_cancel
from tasuki.runs.attempt import as_superseded
from tasuki.runs.attempts import read_attempt_end, read_holder, write_attempt_end
from tasuki.runs.claims import highest_claim, is_superseded, list_claims
from tasuki.runs.control import Word, is_wanted, say
from tasuki.runs.decide import after_stillbirth, next_action
from tasuki.runs.events import EventLog, read_recent_events
from tasuki.runs.jobs import begin_start, find_start, last_start, read_outcome, write_outcome
from tasuki.runs.runs import RunFolder
from tasuki.runs.values import (
    Action,
    Cause,
    Ending,
    Evaluate,
    Finish,
    HandOver,
    Hold,
    PhaseEnded,
    Retry,
    Started,
    Train,
    Verdict,
)
from tasuki.runs.view import live_holder, read_view

if TYPE_CHECKING:
    from tasuki.slurm.client import Slurm
    from tasuki.slurm.text import ShownJob

_TRIES = 30
"""To reach a busy controller: without it the job cannot come back. About a quarter of an hour."""


def settle_job(job: JobOrder, place: Place, *, clock: Clock, environment: Mapping[str, str]) -> int:
    """The exit code of the job."""
    if place.number is None:
        start = last_start(job.folder)
        verdict, code = _outcome(job, place, start, told_cause(job.folder, start), clock)
        return _end(job, code, clock, environment) if verdict is Verdict.END else code
    from tasuki.slurm.client import Slurm

    slurm = Slurm(environment=environment, clock=clock, tries=_TRIES)
    shown = _show(slurm, place)
    if shown is not None and shown.restarts != place.restarts:
        _say(f"job {place.number} has been requeued meanwhile: nothing to do here")
        return EXIT_DONE
    start = find_start(job.folder, place.origin or {}) or begin_start(job.folder, place.origin)
    cause = _cause(shown, job)
    if cause is Cause.CANCELLED:  # perhaps nobody has heard of it yet
        remember_cancel(job)
    verdict, code = _outcome(job, place, start, cause, clock)
    if verdict is Verdict.END:
        return _end(job, code, clock, environment)
    if cause is Cause.CANCELLED:
        _say(f"job {place.number} was cancelled: it does not come back")
        return EXIT_RESUME_ME
    if verdict is Verdict.SUCCESSOR and _is_succeeded(slurm, job, place, start, shown):
        return EXIT_DONE
    return _come_back(slurm, job, place, shown)


def _end(job: JobOrder, code: int, clock: Clock, environment: Mapping[str, str]) -> int:
    """The job does not come back: whoever is to be told of its runs is told now, if not before."""
    from tasuki.jobs.alerts import tell_all

    tell_all(job, clock=clock, environment=environment)
    return code


def _cause(shown: ShownJob | None, job: JobOrder) -> Cause:
    """Why a supervisor died without a word: Slurm's doing, or nobody's."""
    from tasuki.slurm.allocation import cause_of

    grace_s = job.partition_grace_s
    cause = Cause.NONE if shown is None else cause_of(shown, grace_s=grace_s)
    return Cause.NONE if cause is Cause.LOST else cause


def _show(slurm: Slurm, place: Place) -> ShownJob | None:
    from tasuki.slurm.client import NoSlurm

    try:
        return slurm.show(place.number or "")
    except NoSlurm:
        return None  # a node, or a container, without its commands


def _come_back(slurm: Slurm, job: JobOrder, place: Place, shown: ShownJob | None) -> int:
    """By Slurm itself, by a requeue, or as a successor."""
    from tasuki.slurm.allocation import is_coming_back
    from tasuki.slurm.client import NoSlurm, SlurmRefused, SlurmSilent

    assert place.number is not None
    while shown is None or not is_coming_back(shown):
        try:
            slurm.requeue(place.number)  # kills us; nothing after it is sure to run
            break
        except SlurmSilent:
            shown = _show(slurm, place)  # patiently; it may have been heard
            if shown is None or shown.restarts != place.restarts:
                break
        except (SlurmRefused, NoSlurm) as error:
            if "pending" in error.message:
                break
            if all(item.is_continued for lane in job.lanes for item in lane.items):
                _say(f"{error.message}; the next job of the plan goes on")
                return EXIT_DONE
            _say(f"{error.message}; submitting a successor")
            return _submit_successor(slurm, job, place)
    _say(f"job {place.number} comes back")
    return EXIT_RESUME_ME


def _is_succeeded(
    slurm: Slurm, job: JobOrder, place: Place, start: int, shown: ShownJob | None
) -> bool:
    """By a smaller job; where Slurm brings this one back by itself, or refuses, as it is."""
    from tasuki.slurm.allocation import is_coming_back
    from tasuki.slurm.client import SlurmError
    from tasuki.slurm.succession import submit_smaller

    told = read_outcome(job.folder, start) or {}
    if told.get("gpus") is None or (shown is not None and is_coming_back(shown)):
        return False
    gpus, cpus = int(told["gpus"]), told.get("cpus")
    user, after = str(os.getuid()), str(place.number)
    try:
        number = submit_smaller(slurm, job.folder, gpus=gpus, cpus=cpus, after=after, user=user)
    except SlurmError as error:
        _say(f"no smaller job goes on: {error.message}")
        return False
    if number is not None:
        _say(f"job {number} goes on with {gpus} of {job.gpus} GPUs when this one has ended")
    return number is not None


def _submit_successor(slurm: Slurm, job: JobOrder, place: Place) -> int:
    from tasuki.slurm.succession import submit_successor

    user = str(os.getuid())
    number = submit_successor(slurm, job.folder, after=str(place.number), user=user)
    _say(f"job {number} goes on when this one has ended")
    return EXIT_DONE


def _say(text: str) -> None:
    sys.stderr.write(f"tasuki: {text}\n")
    sys.stderr.flush()


# -- a supervisor that died without a word -----------------------------------------------------


def _outcome(
    job: JobOrder, place: Place, start: int, cause: Cause, clock: Clock
) -> tuple[Verdict, int]:
    """As it was written, or as it must be now."""
    told = read_outcome(job.folder, start)
    if told is None:
        told = _bury(job, place, start, cause, clock)
        write_outcome(job.folder, start, told)
    return Verdict(told["verdict"]), int(told["exit_code"])


def _bury(job: JobOrder, place: Place, start: int, cause: Cause, clock: Clock) -> dict[str, Any]:
    """Write down how its attempts ended, and ask relay."""
    log = job.folder.log(start) if place.number is None else job.folder.slurm_log(place.number)
    end = PhaseEnded(
        ending=Ending.FAILED,
        cause=cause,
        message="its supervisor died without a word",
        hint=f"see {log}",
    )
    left = {run: until for run, until in _wishes(job).items() if is_wanted(run)}
    is_stillborn = not any(_own_claim(job, start, run) for run in left) and cause is Cause.NONE
    deaths = 1 + _deaths_before(job, start) if is_stillborn else 0
    actions = [
        after_stillbirth(deaths, hint=end.hint)
        if is_stillborn
        else _bury_run(job, start, run, until, end, clock)
        for run, until in left.items()
    ]
    for run, action in zip(left, actions, strict=True):
        if isinstance(action, Hold):
            with contextlib.suppress(StoreError):  # not even that can be written
                claim = highest_claim(run)
                if not _is_another_jobs(job, run, clock):
                    say(run, Word.HOLD, reason=action.reason, hint=action.hint, claim=claim)
    return {
        **_settle(actions),
        "at": clock.wall(),
        "is_stillborn": is_stillborn,
        "lanes": [],
    }


def _wishes(job: JobOrder) -> dict[RunFolder, str | None]:
    """Up to which stage each run is wanted: as its last item says, in whichever lane."""
    items = [item for lane in job.lanes for item in lane.items]
    awaited = {(item.run, before) for item in items for before in item.after}
    return {item.run: item.until for item in items if (item.run, item.number) not in awaited}


def _settle(actions: list[Action]) -> dict[str, Any]:
    if any(
        isinstance(action, Retry | Train | Evaluate | Finish)
        or (isinstance(action, HandOver) and action.is_resumed)
        for action in actions
    ):
        return {"verdict": Verdict.REQUEUE, "exit_code": EXIT_RESUME_ME}
    is_held = any(isinstance(action, Hold) for action in actions)
    code = EXIT_FAILED if is_held else (EXIT_RESUME_ME if actions else EXIT_DONE)
    return {"verdict": Verdict.END, "exit_code": code}


def _deaths_before(job: JobOrder, start: int) -> int:
    """Starts right before this one that were stillborn too."""
    deaths = 0
    while start - deaths > 1:
        told = read_outcome(job.folder, start - deaths - 1) or {}
        if not told.get("is_stillborn"):
            break
        deaths += 1
    return deaths


def _own_claim(job: JobOrder, start: int, run: RunFolder) -> int | None:
    """The newest claim that this start took; another job may have taken a newer one since."""
    for claim in reversed(list_claims(run)):
        holder = read_holder(run, claim)
        if holder is not None and (holder.job, holder.start) == (job.folder.name, start):
            return claim
    return None


def _is_another_jobs(job: JobOrder, run: RunFolder, clock: Clock) -> bool:
    """Does an attempt of another job work on it? A job that cannot begin says nothing of that."""
    holder = live_holder(run, now=clock.wall())
    return holder is not None and holder.job != job.folder.name


def _bury_run(
    job: JobOrder, start: int, run: RunFolder, until: str | None, end: PhaseEnded, clock: Clock
) -> Action:
    try:
        return _bury_attempt(job, start, run, until, end, clock)
    except StoreError as error:
        if not job.is_packed:
            raise
        return Hold(error.message, error.hint)  # its folder is gone or damaged: the others go on


def _bury_attempt(
    job: JobOrder, start: int, run: RunFolder, until: str | None, end: PhaseEnded, clock: Clock
) -> Action:
    taken = _own_claim(job, start, run)
    claim = highest_claim(run) if taken is None else taken
    is_open = taken is not None and read_attempt_end(run, claim) is None
    view = read_view(run, until=until, requeue=job.requeue)
    if job.is_packed and not is_open:
        return next_action(view, Started(end.cause))  # not in work when the supervisor died
    told = read_recent_events(run, claim)
    if run.commands.is_dir() and not is_superseded(run, claim):
        from tasuki.jobs.kin import end_leftovers

        end_leftovers(run, sleep=clock.sleep)
    own = replace(
        end,
        has_progressed=_has_committed(run, claim) or has_worked(told, now=clock.wall()),
        has_stepped=any(event["kind"] == "progress" for event in told),
    )
    own = as_superseded(run, claim, own)
    action = next_action(view, own)
    if is_open:
        write_attempt_end(run, claim, {**asdict(own), "at": clock.wall()})
        log = EventLog(run, claim=claim, node=0, who="after", clock=clock)
        log.add("attempt-ended", **asdict(own))
        log.close()
    return action


def _has_committed(run: RunFolder, claim: int) -> bool:
    """A checkpoint beyond a stage's start was committed by this claim."""
    if not run.checkpoints.is_dir():
        return False
    return any(Path(name).suffix == f".c{claim}" for name in os.listdir(run.checkpoints))
