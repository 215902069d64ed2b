"""`tasuki equiv`: has a stage's trade the gradient of the plain batch? Asked of a child process.

Chooses the stage and asks (tasuki.train.equiv.child). Nothing is written anywhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tasuki.answers import ChildFailed, ask
from tasuki.commands.asking import Asking
from tasuki.commands.machine import Machine, cpus_for
from tasuki.commands.plan_request import choose_with_recipe
from tasuki.errors import UsageError
from tasuki.runs.atomic import FORMAT
from tasuki.spec.resolved import ResolvedExperiment, ResolvedSpec, ResolvedStage, to_plain


@dataclass(frozen=True, slots=True, kw_only=True)
class EquivRequest:
    spec: ResolvedSpec
    machine: Machine
    asking: Asking
    experiment: str | None = None
    stage: str | None = None
    samples: int | None = None
    """The most of a step; None: as many as can be afforded."""


def prove_stage(request: EquivRequest) -> dict[str, Any]:
    """The values of `tasuki equiv --json`."""
    spec = request.spec
    if request.samples is not None and request.samples < 2:
        raise UsageError(
            f"--samples is {request.samples}: a batch of one cannot be split",
            hint="give at least 2",
        )
    experiment, stage = _choose(request)
    found = _ask(stage, request)
    return {
        "format": FORMAT,
        "source": spec.file,
        "experiment": experiment.name,
        "stage": stage.name,
        **found,
        "other_stages": [s.name for s in experiment.stages if s.name != stage.name],
        "warnings": list(spec.warnings),
    }


def _ask(stage: ResolvedStage, request: EquivRequest) -> dict[str, Any]:
    spec, asking = request.spec, request.asking
    order = {
        "stage": to_plain(stage),
        "folder": spec.folder,
        "ranks": ranks_of(stage, spec),
        "samples": request.samples,
        "threads": min(cpus_for(spec.cluster, request.machine), request.machine.cpus),
    }
    try:
        found: dict[str, Any] = ask(
            "tasuki.train.equiv.child",
            order,
            python=asking.python,
            # Of a GPU nothing is wanted; CUDA's start takes seconds.
            environment={**asking.environment, "CUDA_VISIBLE_DEVICES": ""},
            folder=spec.folder,
            on_progress=asking.on_progress,
        )
    except ChildFailed as error:
        if error.hint.startswith("killed"):  # by the system, most likely
            error.hint += ": float64 takes twice as much; try fewer samples, as --samples 8"
        raise
    return found


def ranks_of(stage: ResolvedStage, spec: ResolvedSpec) -> int:
    """As many as the stage uses."""
    own: object = stage.gpus
    return own if isinstance(own, int) else spec.cluster.gpus * spec.cluster.nodes


def _choose(request: EquivRequest) -> tuple[ResolvedExperiment, ResolvedStage]:
    return choose_with_recipe(
        request.spec,
        request.experiment,
        request.stage,
        why_not="its gradient is not tasuki's to make",
        hint="`tasuki equiv` proves stages with a `recipe`; name one with --stage",
    )
