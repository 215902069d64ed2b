"""Every verb as one Python function that returns the values of `--json`.

Thin: the same actions as the command line, without its talk.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tasuki.actions.cancel import cancel_run
from tasuki.actions.logs import read_logs
from tasuki.actions.new import new_project
from tasuki.actions.plan import PlanRequest, make_plan, request_plan
from tasuki.actions.resume import frozen_spec
from tasuki.actions.run import RunRequest, run_here
from tasuki.actions.runs import find_run
from tasuki.actions.status import read_status
from tasuki.clock import SystemClock
from tasuki.spec.load import load_spec
from tasuki.spec.resolved import ResolvedSpec
from tasuki.store.find import list_runs

_CLOCK = SystemClock()


def new(folder: str | Path) -> dict[str, Any]:
    """Make a project that runs at once."""
    return new_project(Path(folder))


def plan(
    spec: str | Path = "tasuki.yaml",
    *,
    experiments: Sequence[str] = (),
    stages: Sequence[str] = (),
    settings: Sequence[str] = (),
    config: str | None = None,
) -> dict[str, Any]:
    """What would be done, in which jobs, how long it takes. Changes nothing."""
    request = _request(_load(spec, settings, config), experiments, stages)
    return make_plan(request).as_json()


def run(
    spec: str | Path = "tasuki.yaml",
    *,
    experiments: Sequence[str] = (),
    stages: Sequence[str] = (),
    settings: Sequence[str] = (),
    config: str | None = None,
    is_new: bool = False,
    accepted: Sequence[str] = (),
) -> dict[str, Any]:
    """Train here until it is done, or handed over: `exit_code` tells."""
    request = _request(_load(spec, settings, config), experiments, stages)
    request = replace(request, is_new=is_new, measure=request.spec.cluster.time_limit_s is not None)
    result = run_here(RunRequest(plan=request, clock=_CLOCK, accepted=tuple(accepted)))
    return result.as_json(now=_CLOCK.wall())


def resume(run: str, *, runs: str | Path = "runs", code: str = "frozen") -> dict[str, Any]:
    """Go on with a run from its last checkpoint; lifts a hold."""
    folder = find_run(run, Path(runs))
    spec, experiment = frozen_spec(folder, os.environ)
    request = replace(_request(spec, (), ()), folders={experiment.name: folder})
    request = replace(request, measure=spec.cluster.time_limit_s is not None)
    result = run_here(
        RunRequest(
            plan=request, clock=_CLOCK, lifts_hold=True, takes_current_code=code == "current"
        )
    )
    return result.as_json(now=_CLOCK.wall())


def status(*names: str, runs: str | Path = "runs") -> dict[str, Any]:
    """Where runs stand; all of them without names."""
    folder = Path(runs)
    chosen = [find_run(name, folder) for name in names] or list_runs(folder)
    return read_status(chosen, now=_CLOCK.wall())


def cancel(run: str, *, runs: str | Path = "runs") -> dict[str, Any]:
    """End a run, saved."""
    return cancel_run(find_run(run, Path(runs)), clock=_CLOCK)


def logs(run: str, *, runs: str | Path = "runs", errors: bool = False) -> dict[str, str]:
    """What a run printed, by log file, oldest first."""
    return dict(read_logs(find_run(run, Path(runs)), errors=errors))


def _load(spec: str | Path, settings: Sequence[str], config: str | None) -> ResolvedSpec:
    return load_spec(str(spec), settings=settings, config=config, environ=os.environ)


def _request(spec: ResolvedSpec, experiments: Sequence[str], stages: Sequence[str]) -> PlanRequest:
    environment = dict(os.environ)
    return request_plan(spec, experiments, stages, python=sys.executable, environment=environment)
