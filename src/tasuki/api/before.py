"""Verbs before a run: what data, cards and machines say of it, and what would be done."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tasuki.api.inputs import make_request
from tasuki.commands.asking import Asking
from tasuki.commands.discover import load_resolved_spec
from tasuki.commands.estimate import EstimateRequest
from tasuki.commands.estimate import estimate as estimate_stages
from tasuki.commands.inspect import inspect_files, inspect_spec, which_spec
from tasuki.commands.machine import look_around
from tasuki.commands.measure import Measurer
from tasuki.commands.plan import make_plan
from tasuki.spec.site import load_site


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
    loaded = load_resolved_spec(spec, settings, config)
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
            spec=load_resolved_spec(spec, settings, config),
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
    loaded = load_resolved_spec(spec, settings, config)
    request = make_request(loaded, experiments, stages, deadline=deadline)
    measurer = Measurer(is_fresh=fresh)
    return make_plan(replace(request, tells_fits=fits, measurer=measurer)).as_json()
