"""`tasuki run`: plan, freeze, start, and stay until it is done. A second call goes on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tasuki.clock import Clock
from tasuki.commands.back import go_back
from tasuki.commands.fitting import apply_fits
from tasuki.commands.freeze import (
    accept_code,
    accept_data,
    find_changes,
    freeze_run,
    has_stepped,
    in_words,
    is_code_changed,
    refuse_edited_code,
    take_over,
)
from tasuki.commands.jobs import Terms, write_jobs
from tasuki.commands.machine import device_for
from tasuki.commands.plan import PlanRequest, make_plan, slots_here
from tasuki.commands.resume import take_current_code
from tasuki.commands.sinks import check_sinks
from tasuki.commands.status import how_to_lift, read_status
from tasuki.errors import EXIT_DONE, RunError, UsageError
from tasuki.jobs.local import LocalBackend, LocalJob, Preemption
from tasuki.planning.values import Plan
from tasuki.runs.accepted import CODE, DATA
from tasuki.runs.atomic import FORMAT
from tasuki.runs.attempts import Holder, forget_runner, live_runner, write_runner
from tasuki.runs.claims import highest_claim
from tasuki.runs.control import Word, last_said, say
from tasuki.runs.find import latest_run, next_run
from tasuki.runs.profiles import read_profiles
from tasuki.runs.remains import refuse_remains
from tasuki.runs.runs import RunFolder
from tasuki.runs.view import live_holder
from tasuki.spec.resolved import ResolvedExperiment

_LAST_WORD_S = 5.0
"""Of an allocation, kept for ourselves."""

_LOOK_AGAIN_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    plan: PlanRequest
    clock: Clock
    accepted: tuple[str, ...] = ()
    preemption: Preemption | None = None
    lifts_hold: bool = False
    takes_current_code: bool = False
    stays: bool = True
    """This process plays scheduler until all is done."""
    waits_s: float = 0.0
    """So long an attempt that still lives may take to hand over, before that is an error."""
    is_over: Callable[[Holder], bool] = lambda _: False
    """Who cannot be looked at from here is known to be gone."""
    on_plan: Callable[[Plan], None] = lambda _: None
    on_tick: Callable[[], None] = lambda: None
    on_event: Callable[[str, str], None] = lambda _kind, _text: None


@dataclass(slots=True)
class RunResult:
    exit_code: int
    plan: Plan
    runs: list[RunFolder]
    notes: list[str] = field(default_factory=list)
    is_profiled: bool = False

    def as_json(self, *, now: float) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "exit_code": self.exit_code,
            "plan": self.plan.id,
            "runs": read_status(self.runs, now=now)["runs"],
            "notes": self.notes,
            "profiles": [
                profile
                for run in (self.runs if self.is_profiled else ())
                for profile in read_profiles(run)
            ],
        }


def run_here(request: RunRequest) -> RunResult:
    """Everything that is asked for and not done yet, on this machine."""
    spec = request.plan.spec
    folders = open_runs(request)
    plan = make_plan(replace(request.plan, folders=folders, is_here=True))
    request.on_plan(plan)
    request = replace(request, plan=carry_out(request.plan, plan))
    notes = [*nothing_to_profile(plan, request.plan), *take_up(folders, request)]
    for note in notes:
        request.on_event("note", note)
    jobs = local_jobs(plan, folders, request)
    backend = LocalBackend(
        clock=request.clock,
        python=spec.cluster.python or request.plan.python,
        slots=slots_here(request.plan),
        preemption=request.preemption,
        environment=request.plan.environment,
        devices=request.plan.machine.devices if _uses_gpus(request) else (),
        until=_end_of_allocation(request),
        on_tick=request.on_tick,
        on_event=request.on_event,
    )
    try:
        code = backend.run(jobs) if jobs else EXIT_DONE
    finally:  # its process may live on: a notebook's does
        for run in folders.values():
            forget_runner(run)
    return RunResult(
        code, plan, list(folders.values()), notes, is_profiled=request.plan.is_profiled
    )


def carry_out(request: PlanRequest, plan: Plan) -> PlanRequest:
    """What is to be frozen: with the plan's choices in place of what was open."""
    experiments = tuple(apply_fits(request.experiments, plan.fits))
    return replace(request, experiments=experiments, fits=plan.fits)


def nothing_to_profile(plan: Plan, request: PlanRequest) -> list[str]:
    """A wish without effect is told."""
    pieces = [piece for job in plan.jobs for lane in job.lanes for piece in lane.stages]
    if not request.is_profiled or any(piece.kind == "train" for piece in pieces):
        return []
    return ["nothing is left to profile: all steps are done (`--new` begins a new run)"]


def _end_of_allocation(request: RunRequest) -> float | None:
    """Inside an allocation (`salloc`, or a job of one's own) its end is ours; on the monotonic
    clock. None: there is none, or it is not known."""
    job = request.plan.environment.get("SLURM_JOB_ID")
    if job is None:
        return None
    from tasuki.slurm.allocation import SlurmAllocation
    from tasuki.slurm.client import Slurm

    slurm = Slurm(environment=request.plan.environment, clock=request.clock, tries=1, within_s=5.0)
    remaining = SlurmAllocation(slurm, job, limit_s=None, clock=request.clock).remaining_s()
    if remaining is None:
        return None
    return request.clock.monotonic() + remaining - _LAST_WORD_S


def open_runs(request: RunRequest) -> dict[str, RunFolder]:
    """The folder of each experiment, checked; nothing is changed yet."""
    check_sinks(request.plan.spec)
    folders = {}
    for experiment in request.plan.experiments:
        _refuse_idle(experiment)
        find = next_run if request.plan.is_new else latest_run
        meant = request.plan.folders.get(experiment.name)
        run = meant or find(Path(request.plan.spec.runs), experiment.name)
        refuse_remains(run)
        _refuse_live(run, request)
        if run.spec.exists():
            _refuse_held(run, lifts_hold=request.lifts_hold)
            find_changes(run, experiment, accepted=request.accepted)
            is_over = run.is_complete() and request.plan.back is None
            if not is_over and not request.takes_current_code:
                refuse_edited_code(run, accepted=request.accepted)
        folders[experiment.name] = run
    return folders


def take_up(folders: dict[str, RunFolder], request: RunRequest) -> list[str]:
    """Everything can be done: lift words, take changes over. Returns what changed, in words."""
    notes: list[str] = []
    for experiment in request.plan.experiments:
        run = folders[experiment.name]
        if request.plan.back is not None:
            go_back(request.plan.back, clock=request.clock)
            notes += request.plan.back.in_words()
        if run.is_complete():
            continue
        if not run.spec.exists():
            freeze_run(
                run,
                experiment,
                request.plan.spec,
                request.clock,
                fits=request.plan.fits,
                deadline_at=request.plan.deadline_at,
            )
        else:
            changes = find_changes(run, experiment, accepted=request.accepted)
            notes += [f"taken over: {in_words(change)}" for change in changes]
            notes += _accept(run, request)
            take_over(
                run,
                experiment,
                request.plan.spec,
                request.clock,
                fits=request.plan.fits,
                deadline_at=request.plan.deadline_at,
            )
            if request.takes_current_code:
                take_current_code(run, request.clock)
            elif _has_recipe(experiment) and is_code_changed(run, request.plan.spec):
                notes.append(_old_code(run, is_queued=not request.stays))
        if request.stays:
            write_runner(run)
        _lift(run)
    return notes


def _has_recipe(experiment: ResolvedExperiment) -> bool:
    """Commands run what stands in the spec's folder now; only recipes have the run's own copy."""
    return any(stage.recipe is not None for stage in experiment.stages)


def _old_code(run: RunFolder, *, is_queued: bool) -> str:
    """Your changes are not in it, and how they get there. Its start alone is a checkpoint too: with
    another model it would not fit."""
    first = f"`tasuki cancel {run.name}`, then " if is_queued else ""
    how = f"{first}`tasuki resume {run.name} --code current` takes your changes into it"
    if not has_stepped(run):
        how += "; it has done no step yet: `--new` begins anew with them"
    return f"run `{run.name}` goes on with the code it began with; {how}"


def _accept(run: RunFolder, request: RunRequest) -> list[str]:
    """What a person accepts beside the spec: other data, and an edited copy of the code."""
    notes = []
    if CODE in request.accepted and accept_code(run, request.clock):
        notes.append(f"accepted: run `{run.name}` goes on with the code as it was edited there")
    if DATA in request.accepted:
        accept_data(run, request.clock)
        notes.append(f"accepted: the data of run `{run.name}` may differ from the last checkpoint")
    return notes


def _refuse_idle(experiment: ResolvedExperiment) -> None:
    """A spec that only says what to expect can be planned, and no more."""
    for stage in experiment.stages:
        if stage.recipe is None and stage.command is None:
            raise UsageError(
                f"stage `{stage.name}` of `{experiment.name}` has neither `recipe` nor `command`",
                hint="give it a `recipe: module:Class`, or a `command: [python, train.py]`",
            )


def _refuse_live(run: RunFolder, request: RunRequest) -> None:
    who = _who_is_live(run, request)
    if who and request.waits_s:
        request.on_event("note", f"run `{run.name}` is live: {who}; waits for its handover")
    until = request.clock.monotonic() + request.waits_s
    while who and request.clock.monotonic() < until:
        request.clock.sleep(_LOOK_AGAIN_S)
        who = _who_is_live(run, request)
    if who:
        raise RunError(
            f"run `{run.name}` is live: {who}",
            hint="`tasuki status` shows it, `tasuki cancel` ends it, saved",
        )


def _who_is_live(run: RunFolder, request: RunRequest) -> str:
    """Empty: nobody."""
    holder = live_holder(run, now=request.clock.wall())
    if holder is not None and holder.is_alive() is None and request.is_over(holder):
        return ""
    if holder is not None:
        where = f"in job {holder.job}" if holder.job else "as a script by itself"
        return f"attempt {holder.claim} {where} (process {holder.pid})"
    runner = live_runner(run)
    return f"`tasuki run` works on it (process {runner})" if runner is not None else ""


def _refuse_held(run: RunFolder, *, lifts_hold: bool) -> None:
    """Only `resume` lifts a hold."""
    said = last_said(run)
    if said is not None and said.word is Word.HOLD and not lifts_hold:
        raise RunError(
            f"run `{run.name}` is held: {said.reason}",
            hint=how_to_lift(run, said),
        )


def _lift(run: RunFolder) -> None:
    """A person's run lifts a cancel, and a failure they have mended."""
    said = last_said(run)
    if said is not None and said.word is not Word.LIFT:
        say(run, Word.LIFT, reason="a person said so", claim=highest_claim(run))


def _uses_gpus(request: RunRequest) -> bool:
    return device_for(request.plan.spec.cluster, request.plan.machine) == "cuda"


def local_jobs(plan: Plan, folders: dict[str, RunFolder], request: RunRequest) -> list[LocalJob]:
    cluster = request.plan.spec.cluster
    terms = Terms(backend="local", grace_s=cluster.grace_s)
    written = write_jobs(plan, folders, request.plan, terms, request.clock)
    return [
        LocalJob(
            folder=made.folder,
            after=made.job.after,
            runs=made.runs,
            limit_s=made.job.limit_s,
            grace_s=cluster.grace_s,
            gpus=made.job.gpus,
        )
        for made in written
    ]
