"""Verbs of every day: make a project, run, submit, look, end, extend, go on."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tasuki.api.inputs import CLOCK, ask_slurm, make_request, read_work
from tasuki.commands.back import plan_going_back
from tasuki.commands.cancel import cancel_run
from tasuki.commands.extend import extend_run
from tasuki.commands.logs import join_logs, read_logs
from tasuki.commands.new import new_project
from tasuki.commands.new_from_slurm import new_from_script, new_from_slurm
from tasuki.commands.new_from_yaml import new_from_yaml
from tasuki.commands.queued import look_or_say, uses_slurm
from tasuki.commands.resume import (
    frozen_deadline,
    frozen_spec,
    refuse_back_in_job,
    resume_in_its_job,
)
from tasuki.commands.run import RunRequest, run_here
from tasuki.commands.runs import find_run
from tasuki.commands.status import read_status
from tasuki.commands.submit import SubmitRequest
from tasuki.commands.submit import submit as submit_jobs
from tasuki.commands.watch import snapshot
from tasuki.commands.why import tell_why
from tasuki.errors import UsageError
from tasuki.runs.atomic import FORMAT
from tasuki.runs.find import list_shown
from tasuki.spec.site import load_site


def new(
    folder: str | Path,
    *,
    from_yaml: Sequence[str | Path] = (),
    from_slurm: str | Path | None = None,
    from_script: str | Path | None = None,
) -> dict[str, Any]:
    """Make a project that runs at once, or one out of files with keys of transformers' Trainer, of
    a script for sbatch, or of a training script."""
    if sum(map(bool, (from_yaml, from_slurm, from_script))) > 1:
        raise UsageError("a project is made from one thing", hint="give one of the `from_…`")
    if from_yaml:
        return new_from_yaml(Path(folder), [Path(file) for file in from_yaml])
    if from_slurm:
        return new_from_slurm(Path(folder), Path(from_slurm))
    if from_script:
        return new_from_script(Path(folder), Path(from_script))
    return new_project(Path(folder))


def run(
    spec: str | Path = "tasuki.yaml",
    *,
    experiments: Sequence[str] = (),
    stages: Sequence[str] = (),
    settings: Sequence[str] = (),
    config: str | None = None,
    is_new: bool = False,
    accepted: Sequence[str] = (),
    profile: bool = False,
    deadline: str | None = None,
    command: Sequence[str] = (),
    name: str | None = None,
) -> dict[str, Any]:
    """Train here until it is done, or handed over: `exit_code` tells. `profile` measures where a
    step's time goes: `profiles` tells. A `command` is run instead of what a spec asks for, as a
    run of this `name`."""
    loaded = read_work(spec, settings, config, command, name)
    request = make_request(loaded, experiments, stages, deadline=deadline)
    needs_times = loaded.cluster.time_limit_s is not None or request.deadline_s is not None
    request = replace(request, is_new=is_new, measure=needs_times)
    request = replace(request, is_profiled=profile)
    result = run_here(RunRequest(plan=request, clock=CLOCK, accepted=tuple(accepted)))
    return result.as_json(now=CLOCK.wall())


def submit(
    spec: str | Path = "tasuki.yaml",
    *,
    experiments: Sequence[str] = (),
    stages: Sequence[str] = (),
    settings: Sequence[str] = (),
    config: str | None = None,
    is_new: bool = False,
    accepted: Sequence[str] = (),
    profile: bool = False,
    is_dry: bool = False,
    deadline: str | None = None,
    command: Sequence[str] = (),
    name: str | None = None,
) -> dict[str, Any]:
    """Give the work to Slurm; what waits or runs already is not submitted again. A `command` is
    submitted instead of what a spec asks for, as a run of this `name`."""
    loaded = read_work(spec, settings, config, command, name)
    request = make_request(loaded, experiments, stages, deadline=deadline)
    result = submit_jobs(
        SubmitRequest(
            plan=replace(request, is_new=is_new, is_profiled=profile),
            clock=CLOCK,
            slurm=ask_slurm().slurm,
            user=ask_slurm().user,
            site=load_site(environ=os.environ),
            accepted=tuple(accepted),
            is_dry=is_dry,
        )
    )
    return result.as_json(now=CLOCK.wall())


def status(*names: str, runs: str | Path = "runs") -> dict[str, Any]:
    """Where runs stand; all of them without names."""
    folder = Path(runs)
    chosen = [find_run(name, folder, only_shows=True) for name in names] or list_shown(folder)
    known = None
    if uses_slurm(folder):
        asked = ask_slurm()
        known = look_or_say(asked.slurm, folder, user=asked.user, clock=CLOCK)
    return read_status(chosen, now=CLOCK.wall(), known=known)


def logs(run: str, *, runs: str | Path = "runs", errors: bool = False) -> dict[str, str]:
    """What a run printed, by log file, oldest first."""
    return join_logs(read_logs(find_run(run, Path(runs), only_shows=True), errors=errors))


def why(run: str, *, runs: str | Path = "runs") -> dict[str, Any]:
    """Why every attempt of a run ended, and where its time went."""
    return tell_why(find_run(run, Path(runs), only_shows=True), now=CLOCK.wall())


def watch(*names: str, runs: str | Path = "runs") -> dict[str, Any]:
    """What `tasuki watch` shows, once; all runs without names."""
    folder = Path(runs)
    chosen = [find_run(name, folder, only_shows=True) for name in names]
    return snapshot(chosen, folder, clock=CLOCK)


def cancel(run: str, *, runs: str | Path = "runs") -> dict[str, Any]:
    """End a run, saved."""
    return cancel_run(find_run(run, Path(runs)), clock=CLOCK, controller=ask_slurm())


def extend(run: str, amount: str, *, runs: str | Path = "runs") -> dict[str, Any]:
    """More time for the job that works on a run: `+2h` adds, `24h` sets."""
    return extend_run(find_run(run, Path(runs)), amount, clock=CLOCK, controller=ask_slurm())


def resume(
    run: str,
    *,
    runs: str | Path = "runs",
    code: str = "frozen",
    accepted: Sequence[str] = (),
    from_: str | None = None,
) -> dict[str, Any]:
    """Go on with a run from its last checkpoint, or first back to another one (`step-1200`, `best`,
    a folder); lifts a hold. Where the run's job still works for others it goes on there, and this
    returns at once."""
    folder = find_run(run, Path(runs))
    back = None
    if from_ is not None:
        back = plan_going_back(folder, str(from_), accepted=accepted)
        refuse_back_in_job(folder, CLOCK)
    spec, experiment = frozen_spec(folder, os.environ, goes_back=back is not None)
    takes_code, may_join = code == "current", not accepted and back is None
    if may_join and (job := resume_in_its_job(folder, CLOCK, takes_current_code=takes_code)):
        return {"format": FORMAT, "experiment": folder.name, "job": job}
    request = replace(make_request(spec, (), ()), folders={experiment.name: folder})
    request = replace(
        request,
        measure=spec.cluster.time_limit_s is not None,
        deadline_at=frozen_deadline(folder),
        back=back,
    )
    result = run_here(
        RunRequest(
            plan=request,
            clock=CLOCK,
            accepted=tuple(accepted),
            lifts_hold=True,
            takes_current_code=code == "current",
        )
    )
    return result.as_json(now=CLOCK.wall())
