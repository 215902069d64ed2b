"""`tasuki.open_run`: which run this script works on, as which rank, in which attempt.

Under a job of tasuki all of that is given. Else the script is its own supervisor (alone.py): it
makes or continues `./runs/<name of the script>`, takes the claim, and ends at once when the run is
complete (several.py).
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import torch

from tasuki.clock import Clock, SystemClock
from tasuki.errors import RunError, UsageError
from tasuki.failpoints import arm, failpoint
from tasuki.integrations.alone import open_alone, take
from tasuki.integrations.asked import ask, is_kernel
from tasuki.integrations.loop import Loop
from tasuki.integrations.meet import Met, meet
from tasuki.integrations.place import Place, find_place
from tasuki.integrations.run import Run, show_errors_briefly
from tasuki.integrations.several import (
    has_opened_any,
    leave_complete,
    note_opened,
    refuse_second_of_job,
)
from tasuki.integrations.watch import LoopWatch
from tasuki.loop.exact import apply_settings, frozen_threads
from tasuki.loop.stopwatch import Stopwatch, process_age_s
from tasuki.loop.worker import Worker
from tasuki.runs.atomic import FILE_MODE, make_folder, read_json, read_json_or_none, shaped
from tasuki.runs.events import EventLog
from tasuki.runs.runs import RunFolder
from tasuki.spec.resolved import ResolvedSave, ResolvedStage, stage_from_plain
from tasuki.spec.values import parse_every, parse_every_steps

ANOTHER = "tasuki.open_run('other')"
"""What opens a further run."""


def open_run(
    run: str | Path | None = None,
    *,
    save: str | None = None,
    keep: int | None = None,
    seed: int | None = None,
    log_every: str | int | None = None,
    exact: bool | None = None,
) -> Run:
    """Open the run of this script, or the one of this name or folder. What is given here wins over
    the spec: `save="10m"`, `keep=3`, `seed=0` (of the order of samples), `log_every=10`."""
    loop, watch = open_loop(run, save=save, keep=keep, seed=seed, log_every=log_every, exact=exact)
    return Run(loop, watch, is_kernel=is_kernel())


def open_loop(
    run: str | Path | None = None,
    *,
    save: str | None = None,
    keep: int | None = None,
    seed: int | None = None,
    log_every: str | int | None = None,
    exact: bool | None = None,
    clock: Clock | None = None,
    another: str = ANOTHER,
) -> tuple[Loop, LoopWatch]:
    """The same for adapters, which bring a face of their own: `another` is how a further run is
    opened there. Whoever calls it also ends the watch (`watch.end()`)."""
    clock, in_kernel = clock or SystemClock(), is_kernel()
    if not in_kernel:
        show_errors_briefly()
    wishes = _wishes(save=save, keep=keep, seed=seed, log_every=log_every, exact=exact)
    place = find_place(os.environ)
    refuse_second_of_job(place)
    watch = LoopWatch(clock, place, is_kernel=in_kernel)
    if threading.current_thread() is threading.main_thread():
        watch.install_handlers()
    watch.start()
    try:
        loop = _open_loop(run, wishes, place, watch, clock, in_kernel=in_kernel, another=another)
    except BaseException:
        watch.end()
        raise
    return loop, watch


def _open_loop(
    name: str | Path | None,
    wishes: Mapping[str, Any],
    place: Place,
    watch: LoopWatch,
    clock: Clock,
    *,
    in_kernel: bool,
    another: str,
) -> Loop:
    # What a kernel did before, or a script in a loop before this one, is no start of this run.
    age_s = 0.0 if has_opened_any() or in_kernel else process_age_s()
    stopwatch = Stopwatch(clock, lived_s=age_s)
    stopwatch.add("start", age_s)
    began_at = clock.wall() - age_s
    with stopwatch.part("start"):
        met = _meet(name, place, clock)
        folder = RunFolder(met.run)
        if folder.is_complete():
            _end_at_once(folder, name, place, in_kernel=in_kernel, another=another)
        arm(os.environ, rank=place.rank, claim=met.claim)
        if failpoint("open.settings") == "spec":  # `verify resume` saves and logs often
            wishes = {key: value for key, value in wishes.items() if key in ("seed", "exact")}
        stage, before = _read_stage(folder, place, wishes)
        threads = (frozen_threads(folder) if stage.exact else None) or torch.get_num_threads()
        _apply(stage, threads)
        worker = Worker(
            run=folder,
            claim=met.claim,
            job_name="",
            stage=stage,
            stage_number=len(before) + 1,
            device=_device(place),
            threads=threads,
            ranks=met.ranks,
            watch=watch,
            stopwatch=stopwatch,
            events=EventLog(folder, claim=met.claim, node=0, who=f"rank{place.rank}", clock=clock),
            clock=clock,
            grace_s=_grace_s(folder, place),
            voices=_voices(folder, place, met.claim),
        )
    is_alone = place.job is None
    files = place.job.files if place.job is not None else None
    if is_alone:
        _begin_alone(worker, watch, place, began_at=began_at)
    loop = Loop(worker, is_alone=is_alone, is_kernel=in_kernel, files=files)
    loop.stages_before = before
    if (warning := note_opened(folder, name)) is not None and not in_kernel:
        worker.say(warning)
    return loop


def _meet(name: str | Path | None, place: Place, clock: Clock) -> Met:
    if place.job is not None:
        job = place.job
        return meet(place, lambda: (job.run.path, job.claim), runs=job.run.path.parent, clock=clock)
    asked = ask(name, world=place.world, environ=os.environ, orig_argv=sys.orig_argv)

    def begin() -> tuple[Path, int]:
        run = open_alone(asked, clock=clock)
        return run.path.absolute(), 0 if run.is_complete() else take(run, clock=clock)

    runs = asked.path.parent if asked.path is not None else Path("runs")
    met = meet(place, begin, runs=runs, clock=clock)
    if place.rank and (own := asked.folder(asked.read_spec()).path.name) != met.run.name:
        # By name alone: of where it lies each rank may think otherwise, and rank 0 is right.
        raise RunError(
            f"rank {place.rank} opens run `{own}`, and rank 0 `{met.run.name}`",
            hint="all ranks open the same runs in the same order: do they all see the same folder "
            "of runs, when they ask tasuki.is_complete?",
        )
    return met


def _end_at_once(
    run: RunFolder, name: str | Path | None, place: Place, *, in_kernel: bool, another: str
) -> NoReturn:
    with shaped(run.spec):
        stages = [run.stage(stage["name"]) for stage in read_json(run.spec)["stages"]]
        told = [read_json_or_none(stage.metrics) or {} for stage in stages]
        steps = sum(int(value.get("steps") or 0) for value in told)
    weights = stages[-1].weights
    leave_complete(
        run,
        f"run `{run.name}` is complete: {steps:,} steps, in {run.path}",
        name,
        another=another,
        more=f"; {weights} has what this one learnt" if weights.exists() else "",
        is_kernel=in_kernel,
        is_first_rank=place.rank == 0,
    )


def _read_stage(
    run: RunFolder, place: Place, wishes: Mapping[str, Any]
) -> tuple[ResolvedStage, list[str]]:
    """(the stage that this script is, the names of those before it)."""
    with shaped(run.spec):
        stages = [stage_from_plain(plain) for plain in read_json(run.spec)["spec"]["stages"]]
    names = [stage.name for stage in stages]
    number = names.index(place.job.stage) if place.job is not None else 0
    stage = stages[number]
    own = dict(wishes)
    every, keep = own.pop("every", None), own.pop("keep", None)
    saves = ResolvedSave(every=every or stage.save.every, keep=keep or stage.save.keep)
    return msgspec.structs.replace(stage, save=saves, **own), names[:number]


def _wishes(
    *,
    save: str | None,
    keep: int | None,
    seed: int | None,
    log_every: str | int | None,
    exact: bool | None,
) -> dict[str, Any]:
    if keep is not None and keep < 1:
        raise UsageError(f"`keep={keep}` keeps no checkpoint", hint="keep at least 1")
    if isinstance(log_every, int):
        log_every = f"{log_every} steps"
    found = {
        "every": parse_every(save) if save is not None else None,
        "keep": keep,
        "seed": seed,
        "log_every": parse_every_steps(log_every) if log_every is not None else None,
        "exact": exact,
    }
    return {key: value for key, value in found.items() if value is not None}


def _apply(stage: ResolvedStage, threads: int) -> None:
    if stage.exact and torch.cuda.is_available() and not torch.cuda.is_initialized():
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    apply_settings(threads=threads, exact=stage.exact)


def _device(place: Place) -> torch.device:
    """For figures only: which device the script uses is its own business."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", place.local_rank % torch.cuda.device_count())


def _voices(run: RunFolder, place: Place, claim: int) -> list[int]:
    """A supervisor gathers what its command prints. Else a person reads it, and what tasuki says is
    kept for `tasuki logs`; what the script itself prints is not."""
    if place.job is not None or place.rank:
        return [1]
    make_folder(run.logs)
    path = run.logs / f"script.{claim}.log"
    return [2, os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, FILE_MODE)]


def _grace_s(run: RunFolder, place: Place) -> float | None:
    if place.job is None:
        return None
    told = (read_json(run.spec).get("cluster") or {}).get("grace_s")
    return None if told is None else float(told)


def _begin_alone(worker: Worker, watch: LoopWatch, place: Place, *, began_at: float) -> None:
    """What a supervisor would tell, and ask. It would have told of the attempt before the imports:
    else their time is `start` in a span that does not hold it, and is taken off the other parts."""
    stage, world, t = worker.stage.name, worker.ranks.world, round(began_at, 3)
    worker.event("attempt-started", t=t, job="", start=0, gpus=world, price_per_gpu_hour=None)
    worker.event("worker-started", t=t, phase="train", stage=stage, ranks=world, is_command=True)
    if worker.is_first and place.slurm_job is not None:
        from tasuki.slurm.allocation import SlurmAllocation
        from tasuki.slurm.client import Slurm

        slurm = Slurm(environment=dict(os.environ), clock=worker.clock, tries=1, within_s=5.0)
        watch.allocation = SlurmAllocation(slurm, place.slurm_job, limit_s=None, clock=worker.clock)
