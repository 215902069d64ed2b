"""Run shortened stages in a scratch folder, by the code that `tasuki run` uses.

`check` and `verify resume` use it. The user's own runs are never touched.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from tasuki.checkpoint.lineage import list_checkpoints
from tasuki.checkpoint.manifest import Manifest
from tasuki.checkpoint.verify import read_manifest
from tasuki.clock import SystemClock
from tasuki.commands.freeze import freeze_run
from tasuki.commands.machine import device_for
from tasuki.commands.plan import PlanRequest, make_plan
from tasuki.commands.run import RunRequest, local_jobs
from tasuki.errors import RunError
from tasuki.failpoints import VARIABLE as FAILPOINTS
from tasuki.jobs.local import LocalBackend
from tasuki.runs.atomic import make_folder
from tasuki.runs.attempts import live_runner, write_runner
from tasuki.runs.claims import highest_claim
from tasuki.runs.control import Word, last_said, say
from tasuki.runs.runs import RunFolder
from tasuki.spec.resolved import ResolvedExperiment, ResolvedStage

_SIDE_BY_SIDE = 2  # on CPUs: half of a short attempt is the start of torch, which uses one core


def make_scratch(path: Path, *, command: str) -> None:
    """Create the folder. What an earlier call left there is replaced."""
    if (pid := live_runner(RunFolder(path))) is not None:
        raise RunError(
            f"`tasuki {command}` already runs in {path} (PID {pid})", hint="wait until it ends"
        )
    shutil.rmtree(path, ignore_errors=True)
    make_folder(path)
    write_runner(RunFolder(path))


def run_in_scratch(
    request: PlanRequest,
    path: Path,
    stages: Mapping[str, ResolvedStage],
    *,
    failpoints: Sequence[Mapping[str, Any]] = (),
    is_enough: Callable[[RunFolder], bool] = lambda _: False,
    is_over: Callable[[], bool] = lambda: False,
) -> dict[str, RunFolder]:
    """Run each stage as a separate run, by the code that `tasuki run` uses.

    Args:
        stages: By the names of their runs.
        failpoints: Of all runs, as failpoints.py reads them.
        is_enough: A run is not started again. Called for each run, ten times a second.
        is_over: All runs save and stop, within `cluster.grace_s`. Called as often.

    Raises:
        KeyboardInterrupt: The user stopped it.
    """
    scratch = _freeze_stages(request, path, stages, failpoints)
    clock, machine, cluster = SystemClock(), scratch.machine, scratch.spec.cluster
    runs = scratch.folders
    jobs = local_jobs(make_plan(scratch), runs, RunRequest(plan=scratch, clock=clock))

    num_own_interrupts = 0

    def stop_when_done() -> None:
        nonlocal num_own_interrupts
        for run in runs.values():
            if not _is_cancelled(run) and is_enough(run):
                say(run, Word.CANCEL, reason="enough steps", claim=highest_claim(run))
        if not num_own_interrupts and is_over():
            num_own_interrupts += 1
            backend.interrupt()

    on_gpus = device_for(cluster, machine) == "cuda"
    backend = LocalBackend(
        clock=clock,
        python=cluster.python or request.python,
        slots=max(1, machine.gpus) if on_gpus else min(_SIDE_BY_SIDE, machine.cpus) * cluster.gpus,
        environment=scratch.environment,
        devices=machine.devices if on_gpus else (),
        on_tick=stop_when_done,
    )
    backend.run(jobs)
    # The user can press Ctrl-C while runs save because they are over: that counts too.
    if backend.num_interrupts > num_own_interrupts:
        raise KeyboardInterrupt
    return runs


def _freeze_stages(
    request: PlanRequest,
    path: Path,
    stages: Mapping[str, ResolvedStage],
    failpoints: Sequence[Mapping[str, Any]],
) -> PlanRequest:
    """Create the folders of the runs, and the request for a plan of them."""
    experiments = tuple(ResolvedExperiment(name=n, stages=(s,)) for n, s in stages.items())
    folders = {name: RunFolder(path / name) for name in stages}
    # No loggers and no notifications. The user's folder of runs stays out of the copy of the code,
    # so the copy is made with the spec as it is.
    quiet = msgspec.structs.replace(request.spec, sinks=None, on={})
    for experiment in experiments:
        freeze_run(folders[experiment.name], experiment, quiet, SystemClock())
    cluster = msgspec.structs.replace(
        quiet.cluster, backend="local", time_limit_s=None, requeue=True
    )
    spec = msgspec.structs.replace(
        quiet, cluster=cluster, runs=str(path), experiments=experiments, only_stages=()
    )
    return replace(
        request,
        spec=spec,
        experiments=experiments,
        stages=(),
        folders=folders,
        measure=False,
        is_here=True,
        environment={**request.environment, FAILPOINTS: json.dumps(list(failpoints))},
    )


def newest_manifest(run: RunFolder) -> Manifest | None:
    """Of the newest checkpoint of the newest attempt that has one."""
    names = sorted(list_checkpoints(run), key=lambda name: (name.claim, name.order))
    # The run may remove an old checkpoint while this reads; the newest one stays.
    return read_manifest(run.checkpoints / str(names[-1])) if names else None


def failure_of(run: RunFolder) -> tuple[str, str] | None:
    """(reason, hint) of a run that is held or failed."""
    said = last_said(run)
    failed = said is not None and said.word in (Word.HOLD, Word.FAIL)
    return (said.reason, said.hint) if said is not None and failed else None


def _is_cancelled(run: RunFolder) -> bool:
    said = last_said(run) if run.control.is_dir() else None
    return said is not None and said.word is Word.CANCEL
