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
from tasuki.jobs.local import LocalBackend, Preemption
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
    is_enough: Callable[[RunFolder], bool],
    failpoints: Sequence[Mapping[str, Any]] = (),
    preempts: bool = False,
    grace_s: float = 60.0,
    is_over: Callable[[], bool] = lambda: False,
) -> dict[str, RunFolder]:
    """Run each stage as a run of its own until it is enough, then do not start it again.

    Args:
        request: The user's spec, machine and environment.
        path: The scratch folder.
        stages: By the names of their runs.
        is_enough: Asked ten times a second.
        failpoints: Of all runs, as failpoints.py reads them.
        preempts: Stop a run that is enough. Else its failpoints end it.
        grace_s: Seconds from SIGTERM to SIGKILL.
        is_over: There is no time left: save what can be saved, and end.

    Raises:
        KeyboardInterrupt: The user stopped it.
    """
    clock = SystemClock()
    experiments = tuple(ResolvedExperiment(name=n, stages=(s,)) for n, s in stages.items())
    folders = {name: RunFolder(path / name) for name in stages}
    # No loggers and no notifications. The user's folder of runs stays out of the copy of the code,
    # so the copy is made with the spec as it is.
    quiet = msgspec.structs.replace(request.spec, sinks=None, on={})
    for experiment in experiments:
        freeze_run(folders[experiment.name], experiment, quiet, clock)
    cluster = msgspec.structs.replace(
        quiet.cluster, backend="local", time_limit_s=None, requeue=True, grace_s=grace_s
    )
    spec = msgspec.structs.replace(
        quiet, cluster=cluster, runs=str(path), experiments=experiments, only_stages=()
    )
    own = replace(
        request,
        spec=spec,
        experiments=experiments,
        stages=(),
        folders=folders,
        measure=False,
        is_here=True,
        environment={**request.environment, FAILPOINTS: json.dumps(list(failpoints))},
    )
    jobs = local_jobs(make_plan(own), folders, RunRequest(plan=own, clock=clock))

    def stop_if_enough() -> bool:
        enough = [run for run in folders.values() if not _is_cancelled(run) and is_enough(run)]
        for run in enough:
            say(run, Word.CANCEL, reason="enough steps", claim=highest_claim(run))
        return bool(enough) and preempts

    ended: list[bool] = []

    def tick() -> None:
        if not preempts:
            stop_if_enough()
        if is_over() and not ended:
            ended.append(True)
            backend.interrupt()

    machine = request.machine
    on_gpus = device_for(cluster, machine) == "cuda"
    backend = LocalBackend(
        clock=clock,
        python=cluster.python or request.python,
        slots=max(1, machine.gpus) if on_gpus else min(_SIDE_BY_SIDE, machine.cpus) * cluster.gpus,
        preemption=Preemption(when=stop_if_enough) if preempts else None,
        environment=own.environment,
        devices=machine.devices if on_gpus else (),
        on_tick=tick,
    )
    backend.run(jobs)
    if backend.is_interrupted and not ended:
        raise KeyboardInterrupt
    return folders


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
