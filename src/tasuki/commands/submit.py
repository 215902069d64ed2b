"""`tasuki submit`: plan, freeze, and give the jobs to Slurm; a second call submits nothing twice.

First everything is asked and checked that may refuse; only then is anything written.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tasuki.clock import Clock
from tasuki.commands.jobs import Terms, experiments_of, write_jobs
from tasuki.commands.machine import Machine, device_for
from tasuki.commands.plan import PlanRequest, make_plan
from tasuki.commands.queued import Known, join, last_stage
from tasuki.commands.recipes import check_recipes
from tasuki.commands.run import RunRequest, carry_out, nothing_to_profile, open_runs, take_up
from tasuki.commands.status import read_status
from tasuki.errors import RunError, UsageError
from tasuki.planning.values import Job, Plan
from tasuki.runs.atomic import FORMAT, write_bytes
from tasuki.runs.attempts import Holder
from tasuki.runs.find import latest_run, stage_names
from tasuki.runs.jobs import job_folder, list_jobs, submit_lock
from tasuki.runs.locks import locked
from tasuki.runs.runs import RunFolder
from tasuki.slurm.client import Slurm, SlurmRefused
from tasuki.slurm.fit import check_partition, choose_partition, grace_s, kill_wait_s
from tasuki.slurm.queue import Queue, forget_queue
from tasuki.slurm.script import (
    SETUP,
    SlurmJob,
    job_for_cluster,
    minutes_for,
    render_script,
    render_submit,
    sbatch_options,
)
from tasuki.slurm.submit import (
    Order,
    linked_with,
    read_order,
    submit_jobs,
    withdraw,
    write_order,
)
from tasuki.spec.resolved import ResolvedCluster
from tasuki.spec.site import Site, SiteGpu

_CPUS_PER_GPU = 4
_COMPLETES_WITHIN_S = 60.0
_LOOK_EVERY_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitRequest:
    plan: PlanRequest
    clock: Clock
    slurm: Slurm
    user: str
    site: Site = field(default_factory=Site)
    accepted: tuple[str, ...] = ()
    lifts_hold: bool = False
    takes_current_code: bool = False
    is_dry: bool = False
    on_submitted: Callable[[str, str], None] = lambda _name, _number: None
    on_note: Callable[[str], None] = lambda _text: None
    """Something to know before anything is submitted."""


@dataclass(slots=True)
class SubmitResult:
    plan: Plan
    jobs: list[dict[str, Any]]
    """{name, number, after, runs, folder, submit, script}"""
    runs: list[RunFolder]
    notes: list[str] = field(default_factory=list)

    def as_json(self, *, now: float) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "plan": self.plan.as_json(),
            "jobs": self.jobs,
            "runs": read_status([run for run in self.runs if run.spec.exists()], now=now)["runs"],
            "notes": self.notes,
        }


def submit(request: SubmitRequest) -> SubmitResult:
    cluster = request.plan.spec.cluster
    if cluster.backend == "local":
        raise UsageError(
            "`cluster.backend: local` is not for Slurm",
            hint="`tasuki run` trains here; write `backend: slurm`, or leave it out, to submit",
        )
    partitions = request.slurm.partitions()
    partition = choose_partition(cluster, partitions)
    if partition is not None:
        check_partition(cluster, partition)
    terms = Terms(
        backend="slurm",
        grace_s=kill_wait_s(cluster, request.slurm.settings()),
        surplus_s=_surplus_s(cluster),
        partition_grace_s=grace_s(cluster, partitions),
    )
    if request.is_dry:
        return _submit(request, terms)
    lock = submit_lock(Path(request.plan.spec.runs))
    wait = "another `tasuki submit` of these runs, or its sbatch, is at work: waiting for it"
    # Two terminals, one job. An sbatch whose submit was killed holds the lock until it has ended.
    with locked(lock, is_inheritable=True, on_wait=lambda: request.on_note(wait)):
        return _submit(request, terms)


def _submit(request: SubmitRequest, terms: Terms) -> SubmitResult:
    cluster, runs = request.plan.spec.cluster, Path(request.plan.spec.runs)
    known = _look(request, runs)
    if not request.is_dry and _finish_earlier(request, known, runs):
        known = _look(request, runs)
    _refuse_queued(request.plan, known)
    plan_request, notes = _leave_out_queued(_for_cluster(request.plan), known, _changes(request))
    notes += [*_unknown_gpu(cluster, request.site), *_doubtful_python(cluster)]
    check_recipes(plan_request)
    run_request = RunRequest(
        plan=plan_request,
        clock=request.clock,
        accepted=request.accepted,
        lifts_hold=request.lifts_hold,
        takes_current_code=request.takes_current_code,
        stays=False,
        is_over=lambda holder: _has_left_queue(holder, known, runs),
    )
    folders = open_runs(run_request)
    plan = make_plan(replace(plan_request, folders=folders))
    _refuse_too_many(plan, known, request.site)
    setup = _read_setup(request.plan)
    if plan.jobs:
        first = _slurm_job(plan.jobs[0], plan, request)
        notes += _would_wait(request.slurm, first)
    if request.is_dry:
        notes += request.plan.back.in_words() if request.plan.back is not None else []
        return _describe_only(plan, folders, request, notes)
    notes += [*nothing_to_profile(plan, plan_request), *_doubts(runs)]
    notes += take_up(folders, replace(run_request, plan=carry_out(plan_request, plan)))
    for note in notes:
        request.on_note(note)
    written = write_jobs(plan, folders, plan_request, terms, request.clock)
    orders = [write_order(_slurm_job(made.job, plan, request)) for made in written]
    for made in written:
        if setup is not None:
            write_bytes(made.folder.path / SETUP, setup)
    numbers = submit_jobs(
        request.slurm,
        orders,
        user=request.user,
        clock=request.clock,
        on_submitted=lambda order, number: request.on_submitted(order.folder.name, number),
    )
    forget_queue(runs, request.user)
    jobs = [
        _describe(made.job, plan, request, folders, numbers.get(made.folder.name))
        for made in written
    ]
    return SubmitResult(plan, jobs, list(folders.values()), notes)


def _look(request: SubmitRequest, runs: Path) -> Known:
    """The queue, when no job of these runs is about to leave it: only then is it known whether it
    comes back."""
    names = {experiment.name for experiment in request.plan.experiments}
    until = request.clock.monotonic() + _COMPLETES_WITHIN_S
    while True:
        known = join(Queue(jobs=tuple(request.slurm.queue(request.user)), at=0.0), runs)
        ending = {
            job.number
            for run, jobs in known.by_run.items()
            for job in jobs
            if run in names and job.queued.state == "COMPLETING"
        }
        if not ending or request.is_dry or request.clock.monotonic() > until:
            return known
        request.on_note(f"job {', '.join(sorted(ending))} is just ending: waiting for it")
        request.clock.sleep(_LOOK_EVERY_S)


def _for_cluster(request: PlanRequest) -> PlanRequest:
    """Planned for its nodes, not for the machine on which somebody types."""
    cluster = request.spec.cluster
    is_cpu = cluster.gpu == "cpu"
    cpus = cluster.cpus or (cluster.gpus if is_cpu else _CPUS_PER_GPU * cluster.gpus)
    machine = Machine("cpu" if is_cpu else "cuda", 0 if is_cpu else cluster.gpus, cpus)
    return replace(request, machine=machine, measure=False, is_slurm=True)


def _changes(request: SubmitRequest) -> str:
    """What a person wants to be taken into a run, as they typed it."""
    code = ["--code current"] if request.takes_current_code else []
    return " ".join([*code, *(f"--accept-change {key}" for key in request.accepted)])


def _leave_out_queued(
    request: PlanRequest, known: Known, changes: str
) -> tuple[PlanRequest, list[str]]:
    """What waits or runs already is not submitted again, and nothing is changed under it."""
    runs, notes, left = Path(request.spec.runs), [], []
    for experiment in request.experiments:
        run = request.folders.get(experiment.name) or latest_run(runs, experiment.name)
        jobs = () if request.is_new else known.of(run)
        if not jobs:
            left.append(experiment)
            continue
        numbers = ", ".join(f"{job.number} ({job.queued.state})" for job in jobs)
        is_submitted = f"run `{run.name}` is submitted already: job {numbers}; it"
        again = f"`tasuki cancel {run.name}`, then"
        notes.append(
            f"{is_submitted} goes on without `{changes}`. {again} the same command, takes it"
            if changes
            else f"{is_submitted} asks for what the spec said then. {again} `tasuki submit`, takes "
            "a change"
        )
        ends = [stage for job in jobs if (stage := last_stage(job.folder, run.name)) is not None]
        if ends and ends[-1] != stage_names(run)[-1]:
            notes[-1] += f"; it ends with stage `{ends[-1]}`: submit what follows when that is done"
    return replace(request, experiments=tuple(left)), notes


def _refuse_queued(request: PlanRequest, known: Known) -> None:
    """A job in the queue would begin whenever it likes: nobody goes back under it."""
    jobs = known.of(request.back.run) if request.back is not None else ()
    if request.back is not None and jobs:
        name = request.back.run.name
        numbers = ", ".join(f"{job.number} ({job.queued.state})" for job in jobs)
        raise RunError(
            f"run `{name}` is submitted already: job {numbers}; it cannot go back under it",
            hint=f"`tasuki cancel {name}`, then the same command",
        )


def _has_left_queue(holder: Holder, known: Known, runs: Path) -> bool:
    """An attempt on a node that died says nothing; its job is not in the queue any more."""
    in_queue = {job.folder.name for jobs in known.by_run.values() for job in jobs}
    return job_folder(runs, holder.job).order.exists() and holder.job not in in_queue


def _would_wait(slurm: Slurm, job: SlurmJob) -> list[str]:
    """Not an error: nodes may only be down for now."""
    try:
        slurm.test(sbatch_options(job))
    except SlurmRefused as error:
        return [f"as things are, no node can run this ({error.message}): {error.hint}"]
    return []


def _doubtful_python(cluster: ResolvedCluster) -> list[str]:
    python = cluster.python
    if python is None or cluster.container or shutil.which(python) is not None:
        return []
    return [f"`cluster.python: {python}` is no program on this machine; on the nodes?"]


def _finish_earlier(request: SubmitRequest, known: Known, runs: Path) -> bool:
    """Settle what an earlier submit, killed or refused, has left. Was anything submitted?

    A job that is linked with one in the queue is submitted: its runs are not planned again. All
    others are withdrawn before a new plan takes their runs, so that no run is ever in two plans.
    """
    folders = [job for job in list_jobs(runs) if job.order.exists() and not job.withdrawn.exists()]
    left = {folder.name for folder in folders if not folder.submitted.exists()}
    plans = {name.rpartition("-")[0] for name in left}
    orders = [read_order(job) for job in folders if job.name.rpartition("-")[0] in plans]
    queued = {job.folder.name for jobs in known.by_run.values() for job in jobs}
    linked = linked_with(queued, orders)
    for order in orders:
        if order.folder.name in left - linked:
            withdraw(order.folder)
    if left.isdisjoint(linked):
        return False

    def on_submitted(order: Order, number: str) -> None:
        if order.folder.name in left:
            request.on_submitted(order.folder.name, number)

    submit_jobs(
        request.slurm,
        [order for order in orders if order.folder.name in linked],
        user=request.user,
        clock=request.clock,
        on_submitted=on_submitted,
    )
    return True


def _surplus_s(cluster: ResolvedCluster) -> float:
    limit = cluster.time_limit_s
    return 0.0 if limit is None else minutes_for(limit) * 60 - limit


def _read_setup(request: PlanRequest) -> bytes | None:
    """The user's own lines, sourced before srun: a file, read now so that a change or a mistake in
    its name shows now."""
    named = request.spec.cluster.setup
    if named is None:
        return None
    path = Path(request.spec.folder, named).expanduser()
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(
            f"`cluster.setup` names {path}, which cannot be read: {error.strerror}",
            hint="it is a file of shell commands, such as `module load cuda`",
        ) from error


def _doubts(runs: Path) -> list[str]:
    """Folders that usually exist on one host only: a job on a node would not find its own."""
    for local in ("/tmp", "/var/tmp", "/dev/shm"):
        if runs.resolve().is_relative_to(local):
            return [f"the runs' folder {runs} lies in {local}, which nodes may not share"]
    return []


def _slurm_job(job: Job, plan: Plan, request: SubmitRequest) -> SlurmJob:
    asked = _for_cluster(request.plan)
    cluster, folder = asked.spec.cluster, job_folder(Path(asked.spec.runs), job.name)
    python = asked.python if cluster.container else (cluster.python or asked.python)
    gpus = job.gpus if device_for(cluster, asked.machine) == "cuda" else 0
    slurm_job = job_for_cluster(cluster, request.site, name=job.name, folder=folder.path, gpus=gpus)
    return replace(
        slurm_job,
        command=(python, "-P", "-m", "tasuki.jobs", str(folder.path)),
        limit_s=job.limit_s,
        cpus=job.cpus,
        memory_bytes=job.host_bytes,
        mail=cluster.mail,
        is_last=not any(job.name in other.after for other in plan.jobs),
        after=job.after,
    )


def _unknown_gpu(cluster: ResolvedCluster, site: Site) -> list[str]:
    if cluster.gpu in (None, "cpu") or site.gpus.get(cluster.gpu, SiteGpu()).is_named:
        return []
    words = f"what `gpu: {cluster.gpu}` is called here is not known: any GPU is asked for"
    return [f"{words}; the site file's `gpus` would tell (`tasuki doctor`)"]


def _refuse_too_many(plan: Plan, known: Known, site: Site) -> None:
    here = len({job.number for jobs in known.by_run.values() for job in jobs})
    if site.max_jobs is not None and here + len(plan.jobs) > site.max_jobs:
        raise UsageError(
            f"{len(plan.jobs)} jobs are planned and {here} are in the queue, but this site takes "
            f"{site.max_jobs} of a user",
            hint="submit fewer with `--experiment`, or ask for a longer `cluster.time_limit`",
        )


def _describe_only(
    plan: Plan, folders: Mapping[str, RunFolder], request: SubmitRequest, notes: list[str]
) -> SubmitResult:
    """`--dry-run`."""
    jobs = [_describe(job, plan, request, folders, None) for job in plan.jobs]
    return SubmitResult(plan, jobs, list(folders.values()), notes)


def _describe(
    job: Job,
    plan: Plan,
    request: SubmitRequest,
    folders: Mapping[str, RunFolder],
    number: str | None,
) -> dict[str, Any]:
    slurm_job = _slurm_job(job, plan, request)
    return {
        "name": job.name,
        "number": number,
        "after": list(job.after),
        "runs": [folders[name].name for name in experiments_of(job)],
        "folder": str(slurm_job.folder),
        "submit": render_submit(slurm_job),
        "script": render_script(),
    }
