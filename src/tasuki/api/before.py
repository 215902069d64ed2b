"""Verbs before a run: what data, cards and machines say of it, and what would be done."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tasuki.api.inputs import CLOCK, make_request, read_spec
from tasuki.commands.asking import Asking
from tasuki.commands.doctor import DoctorRequest, examine
from tasuki.commands.estimate import EstimateRequest
from tasuki.commands.estimate import estimate as estimate_stages
from tasuki.commands.inspect import inspect_files, inspect_spec, which_spec
from tasuki.commands.machine import look_around
from tasuki.commands.measure import Measurer
from tasuki.commands.plan import make_plan
from tasuki.commands.rehearse import RehearseRequest, rehearse_stages
from tasuki.commands.tune import DEFAULT_BUDGET, TuneRequest, read_switches, tune_batch, tune_stage
from tasuki.spec.site import load_site
from tasuki.units import Duration


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
    loaded = read_spec(spec, settings, config)
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
            spec=read_spec(spec, settings, config),
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
    fits: bool = False,
    fresh: bool = False,
) -> dict[str, Any]:
    """What would be done, in which jobs, how long it takes. Changes nothing. `deadline`: `6h` or a
    date with a time; `fits`: with other ways to do each step; `fresh`: steps are measured again,
    whatever is kept of them in `runs/.probes`."""
    loaded = read_spec(spec, settings, config)
    request = make_request(loaded, experiments, stages, deadline=deadline)
    measurer = Measurer(is_fresh=fresh)
    return make_plan(replace(request, tells_fits=fits, measurer=measurer)).as_json()


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
            plan=make_request(read_spec(spec, settings, config), experiments, stages),
            clock=CLOCK,
            budget_s=Duration.parse(budget).seconds,
            micro_batch=micro_batch,
            ranks=ranks,
            is_online=is_online,
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
            spec=read_spec(spec, settings, config),
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
            clock=CLOCK,
            settings=settings,
            config=config,
            runs=Path(runs).absolute() if runs is not None else None,
            is_live=live,
            partition=partition,
            within_s=Duration.parse(within).seconds,
        )
    )
