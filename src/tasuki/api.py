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

from tasuki.actions.asking import Asking
from tasuki.actions.audit import audit_run
from tasuki.actions.cancel import Controller, cancel_run
from tasuki.actions.checkpoint import (
    ComparedBy,
    diff_checkpoints,
    show_checkpoints,
    verify_checkpoints,
)
from tasuki.actions.data import DataWork, check_files, merge_files, split_files, tokenize_files
from tasuki.actions.discover import look_with
from tasuki.actions.doctor import DoctorRequest, examine
from tasuki.actions.drill import DrillRequest, run_drill
from tasuki.actions.equiv import EquivRequest, prove_stage
from tasuki.actions.estimate import EstimateRequest
from tasuki.actions.estimate import estimate as estimate_stages
from tasuki.actions.evaluate import Asked, evaluate_weights, of_run, of_spec
from tasuki.actions.export import Wanted, export_run
from tasuki.actions.extend import extend_run
from tasuki.actions.fair import compare_experiments, compare_runs
from tasuki.actions.history import Filter, list_history
from tasuki.actions.inspect import inspect_files, inspect_spec, which_spec
from tasuki.actions.logs import read_logs
from tasuki.actions.machine import look_around
from tasuki.actions.new import new_project
from tasuki.actions.new_from_slurm import new_from_script, new_from_slurm
from tasuki.actions.new_from_yaml import new_from_yaml
from tasuki.actions.plan import PlanRequest, make_plan, request_plan
from tasuki.actions.prune import prune_run
from tasuki.actions.queued import look_or_say, uses_slurm
from tasuki.actions.rehearse import RehearseRequest, rehearse_stages
from tasuki.actions.resume import frozen_spec, resume_in_its_job
from tasuki.actions.run import RunRequest, run_here
from tasuki.actions.runs import find_run
from tasuki.actions.status import read_status
from tasuki.actions.submit import SubmitRequest
from tasuki.actions.submit import submit as submit_jobs
from tasuki.actions.tune import DEFAULT_BUDGET, TuneRequest, read_switches, tune_batch, tune_stage
from tasuki.actions.what_if import WhatIfRequest, read_knobs
from tasuki.actions.what_if import what_if as compare_plans
from tasuki.clock import SystemClock
from tasuki.errors import UsageError
from tasuki.scheduler.slurm.client import Slurm
from tasuki.spec.export import FileFormat
from tasuki.spec.load import load_command, load_spec
from tasuki.spec.resolved import ResolvedSpec
from tasuki.spec.site import load_site
from tasuki.store.atomic import FORMAT
from tasuki.store.find import list_runs
from tasuki.units import Duration

_CLOCK = SystemClock()


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


def inspect(
    *sources: str | Path,
    experiments: Sequence[str] = (),
    stages: Sequence[str] = (),
    settings: Sequence[str] = (),
    config: str | None = None,
    check: bool = False,
    gpu: str | None = None,
) -> dict[str, Any]:
    """What HDF5 files hold, or the data of a spec (default tasuki.yaml), opened by its recipes;
    with a `gpu` also which micro-batch of each size fits it."""
    words = [str(source) for source in sources]
    asking = Asking(python=sys.executable, environment=dict(os.environ))
    spec = which_spec(words)
    if spec is None:
        return inspect_files(words, check=check, asking=asking)
    loaded = _load(spec, settings, config)
    return inspect_spec(loaded, experiments, stages, check=check, asking=asking, gpu=gpu)


def estimate(
    spec: str | Path = "tasuki.yaml",
    *,
    gpus: Sequence[str] = (),
    compares: bool = False,
    alternatives: bool = False,
    experiments: Sequence[str] = (),
    stages: Sequence[str] = (),
    settings: Sequence[str] = (),
    config: str | None = None,
) -> dict[str, Any]:
    """Batch, memory and time of every stage on a card (default: the spec's), without a GPU."""
    environment = dict(os.environ)
    return estimate_stages(
        EstimateRequest(
            spec=_load(spec, settings, config),
            machine=look_around(environment),
            asking=Asking(python=sys.executable, environment=environment),
            site=load_site(environ=environment),
            experiments=tuple(experiments),
            stages=tuple(stages),
            gpus=tuple(gpus),
            compares=compares,
            alternatives=alternatives,
            words=(str(spec),) if str(spec) != "tasuki.yaml" else (),
        )
    )


def plan(
    spec: str | Path = "tasuki.yaml",
    *,
    experiments: Sequence[str] = (),
    stages: Sequence[str] = (),
    settings: Sequence[str] = (),
    config: str | None = None,
    deadline: str | None = None,
    exact: str | None = None,
    fits: bool = False,
    what_if: Sequence[str] = (),
) -> dict[str, Any]:
    """What would be done, in which jobs, how long it takes. Changes nothing. `deadline`: `6h` or a
    date with a time; `exact`: how long CP-SAT may look for a shorter packing; `fits`: with other
    ways to do each step. With `what_if` (`gpus=2,4,8`) the plans of every combination instead."""

    def ask(loaded: ResolvedSpec) -> PlanRequest:
        return _request(loaded, experiments, stages, deadline=deadline, exact=exact)

    if what_if:
        return compare_plans(
            WhatIfRequest(
                knobs=read_knobs(what_if),
                load=lambda more: _load(spec, (*settings, *more), config),
                request=ask,
            )
        )
    request = ask(_load(spec, settings, config))
    return make_plan(replace(request, tells_fits=fits)).as_json()


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
    exact: str | None = None,
    command: Sequence[str] = (),
    name: str | None = None,
) -> dict[str, Any]:
    """Train here until it is done, or handed over: `exit_code` tells. `profile` measures where a
    step's time goes: `profiles` tells. A `command` is run instead of what a spec asks for, as a
    run of this `name`."""
    loaded = _load_command(command, settings, name) if command else _load(spec, settings, config)
    request = _request(loaded, experiments, stages, deadline=deadline, exact=exact)
    needs_times = loaded.cluster.time_limit_s is not None or request.deadline_s is not None
    request = replace(request, is_new=is_new, measure=needs_times)
    request = replace(request, is_profiled=profile)
    result = run_here(RunRequest(plan=request, clock=_CLOCK, accepted=tuple(accepted)))
    return result.as_json(now=_CLOCK.wall())


def resume(
    run: str,
    *,
    runs: str | Path = "runs",
    code: str = "frozen",
    accepted: Sequence[str] = (),
) -> dict[str, Any]:
    """Go on with a run from its last checkpoint; lifts a hold. Where the run's job still works for
    others it goes on there, and this returns at once."""
    folder = find_run(run, Path(runs))
    spec, experiment = frozen_spec(folder, os.environ)
    takes_code = code == "current"
    if not accepted and (job := resume_in_its_job(folder, _CLOCK, takes_current_code=takes_code)):
        return {"format": FORMAT, "experiment": folder.name, "job": job}
    request = replace(_request(spec, (), ()), folders={experiment.name: folder})
    request = replace(request, measure=spec.cluster.time_limit_s is not None)
    result = run_here(
        RunRequest(
            plan=request,
            clock=_CLOCK,
            accepted=tuple(accepted),
            lifts_hold=True,
            takes_current_code=code == "current",
        )
    )
    return result.as_json(now=_CLOCK.wall())


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
    exact: str | None = None,
    command: Sequence[str] = (),
    name: str | None = None,
) -> dict[str, Any]:
    """Give the work to Slurm; what waits or runs already is not submitted again. A `command` is
    submitted instead of what a spec asks for, as a run of this `name`."""
    loaded = _load_command(command, settings, name) if command else _load(spec, settings, config)
    request = _request(loaded, experiments, stages, deadline=deadline, exact=exact)
    result = submit_jobs(
        SubmitRequest(
            plan=replace(request, is_new=is_new, is_profiled=profile),
            clock=_CLOCK,
            slurm=_slurm().slurm,
            user=_slurm().user,
            site=load_site(environ=os.environ),
            accepted=tuple(accepted),
            is_dry=is_dry,
        )
    )
    return result.as_json(now=_CLOCK.wall())


def extend(run: str, amount: str, *, runs: str | Path = "runs") -> dict[str, Any]:
    """More time for the job that works on a run: `+2h` adds, `24h` sets."""
    return extend_run(find_run(run, Path(runs)), amount, clock=_CLOCK, controller=_slurm())


def _slurm() -> Controller:
    return Controller(slurm=Slurm(environment=os.environ, clock=_CLOCK), user=str(os.getuid()))


def status(*names: str, runs: str | Path = "runs") -> dict[str, Any]:
    """Where runs stand; all of them without names."""
    folder = Path(runs)
    chosen = [find_run(name, folder) for name in names] or list_runs(folder)
    known = None
    if uses_slurm(folder):
        asked = _slurm()
        known = look_or_say(asked.slurm, folder, user=asked.user, clock=_CLOCK)
    return read_status(chosen, now=_CLOCK.wall(), known=known)


def history(
    *,
    runs: str | Path = "runs",
    experiments: Sequence[str] = (),
    recipe: str | None = None,
    gpu: str | None = None,
    since: str | None = None,
) -> dict[str, Any]:
    """What past stages took, newest first; `since` is a span (`7d`) or a day (`2026-11-17`)."""
    wanted = Filter.read(experiments, recipe=recipe, gpu=gpu, since=since, now=_CLOCK.wall())
    return list_history(Path(runs), wanted)


def cancel(run: str, *, runs: str | Path = "runs") -> dict[str, Any]:
    """End a run, saved."""
    return cancel_run(find_run(run, Path(runs)), clock=_CLOCK, controller=_slurm())


def logs(run: str, *, runs: str | Path = "runs", errors: bool = False) -> dict[str, str]:
    """What a run printed, by log file, oldest first."""
    return dict(read_logs(find_run(run, Path(runs)), errors=errors))


def evaluate(
    run: str | None = None,
    *,
    weights: str | Path | None = None,
    data: str | Sequence[str] = (),
    split: str | None = None,
    stage: str | None = None,
    benchmark: bool = False,
    spec: str | Path = "tasuki.yaml",
    experiment: str | None = None,
    settings: Sequence[str] = (),
    config: str | None = None,
    runs: str | Path = "runs",
) -> dict[str, Any]:
    """Any weights on any data: those of a run with its own spec, or `weights` with a spec."""
    asked = Asked(
        here=Path.cwd(),
        weights=Path(weights) if weights is not None else None,
        data=(data,) if isinstance(data, str) else tuple(data),
        split=split,
        stage=stage,
    )
    if run is not None:
        evaluation = of_run(run, asked, runs=Path(runs).absolute())
    else:
        evaluation = of_spec(_load(spec, settings, config), asked, experiment=experiment)
    return evaluate_weights(
        evaluation, benchmark=benchmark, python=sys.executable, environment=dict(os.environ)
    )


def export(
    run: str,
    *,
    to: str | Path | None = None,
    file_format: FileFormat | None = None,
    source: str = "best",
    force: bool = False,
    runs: str | Path = "runs",
) -> dict[str, Any]:
    """Write a stage's weights to a file."""
    wanted = Wanted(
        here=Path.cwd(),
        to=Path(to) if to is not None else None,
        file_format=file_format,
        source=source,
        force=force,
    )
    environment = dict(os.environ)
    return export_run(
        run, wanted, runs=Path(runs).absolute(), python=sys.executable, environment=environment
    )


def doctor(
    spec: str | Path | None = None,
    *,
    settings: Sequence[str] = (),
    config: str | None = None,
    runs: str | Path | None = None,
    live: bool = False,
    partition: str | None = None,
    within: str = "10m",
) -> dict[str, Any]:
    """What this machine and its Slurm give a job: `ok` tells whether something would stop one."""
    return examine(
        DoctorRequest(
            source=str(spec) if spec is not None else None,
            here=Path.cwd(),
            python=sys.executable,
            environment=dict(os.environ),
            clock=_CLOCK,
            settings=settings,
            config=config,
            runs=Path(runs).absolute() if runs is not None else None,
            is_live=live,
            partition=partition,
            within_s=Duration.parse(within).seconds,
        )
    )


def tune(
    spec: str | Path = "tasuki.yaml",
    *,
    experiment: str | None = None,
    stage: str | None = None,
    only: Sequence[str] = (),
    budget: str = DEFAULT_BUDGET,
    write: bool | Sequence[str] = False,
    settings: Sequence[str] = (),
    config: str | None = None,
    is_dry: bool = False,
    batch: bool = False,
) -> dict[str, Any]:
    """What each switch buys on this recipe, measured; `keep` has what is worth keeping. `write`
    puts it into the spec: all that gives up nothing (True), or these switches. `batch`: the largest
    micro-batch that fits this device instead."""
    environment = dict(os.environ)
    wanted = None if write is False else () if write is True else read_switches(",".join(write))
    work = tune_batch if batch else tune_stage
    return work(
        TuneRequest(
            spec=_load(spec, settings, config),
            machine=look_around(environment),
            python=sys.executable,
            environment=environment,
            budget_s=Duration.parse(budget).seconds,
            experiment=experiment,
            stage=stage,
            only=read_switches(",".join(only)),
            write=wanted,
            is_dry=is_dry,
        )
    )


def rehearse(
    spec: str | Path = "tasuki.yaml",
    *,
    experiments: Sequence[str] = (),
    stages: Sequence[str] = (),
    settings: Sequence[str] = (),
    config: str | None = None,
    micro_batch: int | None = None,
    ranks: int = 1,
    budget: str = "60s",
    is_online: bool = False,
) -> dict[str, Any]:
    """Two steps, a save and an evaluation of every stage, in a scratch folder: `ok` tells."""
    return rehearse_stages(
        RehearseRequest(
            plan=_request(_load(spec, settings, config), experiments, stages),
            clock=_CLOCK,
            budget_s=Duration.parse(budget).seconds,
            micro_batch=micro_batch,
            ranks=ranks,
            is_online=is_online,
        )
    )


def drill(
    spec: str | Path = "tasuki.yaml",
    *,
    experiment: str | None = None,
    stage: str | None = None,
    scenarios: Sequence[str] = (),
    settings: Sequence[str] = (),
    config: str | None = None,
    keep: bool = False,
) -> dict[str, Any]:
    """Interrupt a run in the worst places and compare it bit for bit: `equal` tells."""
    request = _request(_load(spec, settings, config), [experiment] if experiment else [], ())
    return run_drill(
        DrillRequest(plan=request, clock=_CLOCK, stage=stage, scenarios=tuple(scenarios), keep=keep)
    )


def equiv(
    *sources: str | Path,
    experiments: Sequence[str] = (),
    stage: str | None = None,
    samples: int | None = None,
    compare: bool = False,
    intended: Sequence[str] = (),
    settings: Sequence[str] = (),
    config: str | None = None,
    runs: str | Path = "runs",
) -> dict[str, Any]:
    """Has the trade of a stage the gradient of the plain batch? `verdict` tells, `culprits` why
    not. With `compare`: may the experiments of a spec, or these runs, be compared? `fair` tells."""
    environment = dict(os.environ)
    asking = Asking(python=sys.executable, environment=environment)
    if compare and len(sources) > 1:
        names = [str(source) for source in sources]
        return compare_runs(names, Path(runs).absolute(), intended=intended, asking=asking)
    spec = _load(sources[0] if sources else "tasuki.yaml", settings, config)
    if compare:
        return compare_experiments(spec, experiments, intended=intended, asking=asking)
    return prove_stage(
        EquivRequest(
            spec=spec,
            machine=look_around(environment),
            asking=asking,
            experiment=next(iter(experiments), None),
            stage=stage,
            samples=samples,
        )
    )


def audit(run: str, *, stage: str | None = None, runs: str | Path = "runs") -> dict[str, Any]:
    """Was each sample used exactly once per epoch, over all attempts? `is_proven` tells."""
    return audit_run(
        run,
        stage=stage,
        runs=Path(runs).absolute(),
        python=sys.executable,
        environment=dict(os.environ),
    )


def checkpoint_show(
    what: str | None = None, *, entries: str | None = None, runs: str | Path = "runs"
) -> dict[str, Any]:
    """The checkpoints of a run (of all runs without a name), or what is in one: `sine@1200`."""
    where = Path(runs).absolute()
    return show_checkpoints(what, runs=where, now=_CLOCK.wall(), pattern=entries)


def checkpoint_verify(
    what: str | None = None, *, all_runs: bool = False, runs: str | Path = "runs"
) -> dict[str, Any]:
    """Read every byte of a run's checkpoints, or of one: `ok` tells, and `resume` what it takes."""
    return verify_checkpoints(what, runs=Path(runs).absolute(), is_all=all_runs)


def checkpoint_diff(a: str, b: str, *, runs: str | Path = "runs") -> dict[str, Any]:
    """Where two checkpoints differ, and by how much: `equal`, `first`, `differing`."""
    asking = ComparedBy(python=sys.executable, environment=dict(os.environ))
    where = Path(runs).absolute()
    return diff_checkpoints(a, b, runs=where, now=_CLOCK.wall(), asking=asking)


def checkpoint_prune(
    run: str, *, keep: int | None = None, is_dry: bool = False, runs: str | Path = "runs"
) -> dict[str, Any]:
    """Remove old checkpoints and what killed attempts left."""
    folder = find_run(run, Path(runs).absolute())
    return prune_run(folder, now=_CLOCK.wall(), keep=keep, is_dry=is_dry)


def data_merge(
    *files: str | Path, output: str | Path, unique: bool = False, force: bool = False
) -> dict[str, Any]:
    """Put the samples of several HDF5 files into one; `unique` keeps the first of equal ones."""
    words = [str(file) for file in files]
    return merge_files(words, Path(output), unique=unique, work=_data_work(force))


def data_split(
    *files: str | Path,
    folder: str | Path | None = None,
    seed: int = 0,
    parts: str = "0.8,0.1,0.1",
    force: bool = False,
) -> dict[str, Any]:
    """Write train.h5, val.h5 and test.h5; each sample's part follows from seed and content."""
    where = Path(folder) if folder is not None else None
    words = [str(file) for file in files]
    return split_files(words, where, seed=seed, parts=parts, work=_data_work(force))


def data_check(
    *files: str | Path,
    fix: bool = False,
    output: str | Path | None = None,
    allow: Sequence[str] = (),
    force: bool = False,
) -> dict[str, Any]:
    """Find bad samples of HDF5 files; `fix` writes copies without them."""
    where = Path(output) if output is not None else None
    words = [str(file) for file in files]
    return check_files(words, fix=fix, output=where, allow=allow, work=_data_work(force))


def data_tokenize(
    *files: str | Path,
    output: str | Path,
    tokenizer: str | Path | None = None,
    train: int | None = None,
    takes_bytes: bool = False,
    documents: str = "file",
    field: str = "text",
    chunk: int = 32768,
    shard_size: str = "512M",
    end_token: str | None = None,
    special_tokens: bool = False,
    on_broken: str = "stop",
    workers: int | None = None,
    force: bool = False,
) -> dict[str, Any]:
    """Make a folder of packed tokens of documents in txt, jsonl or parquet files."""
    return tokenize_files(
        [str(file) for file in files],
        Path(output),
        tokenizer=Path(tokenizer) if tokenizer is not None else None,
        train=train,
        takes_bytes=takes_bytes,
        documents=documents,
        field=field,
        chunk=chunk,
        shard_size=shard_size,
        end_token=end_token,
        special_tokens=special_tokens,
        on_broken=on_broken,
        workers=workers,
        work=_data_work(force),
    )


def _data_work(force: bool) -> DataWork:
    return DataWork(python=sys.executable, environment=dict(os.environ), force=force)


def _load_command(words: Sequence[str], settings: Sequence[str], name: str | None) -> ResolvedSpec:
    environ = {**os.environ, **({"TASUKI_NAME": name} if name else {})}
    return load_command(words, settings=settings, environ=environ)


def _load(spec: str | Path, settings: Sequence[str], config: str | None) -> ResolvedSpec:
    look = look_with(python=sys.executable, environment=dict(os.environ))
    return load_spec(str(spec), settings=settings, config=config, environ=os.environ, look=look)


def _request(
    spec: ResolvedSpec,
    experiments: Sequence[str],
    stages: Sequence[str],
    *,
    deadline: str | None = None,
    exact: str | None = None,
) -> PlanRequest:
    return request_plan(
        spec,
        experiments,
        stages,
        python=sys.executable,
        environment=dict(os.environ),
        deadline=deadline,
        exact_s=Duration.parse(exact).seconds if exact else None,
    )
