"""Check a run, or your own recipe: the functions behind `tasuki verify samples | gradients`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from tasuki import subprocesses
from tasuki.commands.commands import refuse_commands
from tasuki.commands.discover import load_resolved_spec
from tasuki.commands.finished import open_run, stage_named
from tasuki.commands.plan_request import choose_with_recipe
from tasuki.runs.atomic import FORMAT


class StageSamples(msgspec.Struct, frozen=True):
    stage: str
    status: str  # verified, wrong, not recorded, not started
    message: str = ""
    epochs: int = 0  # complete ones
    samples: int = 0
    attempts: int = 0
    missing_records: int = 0  # harmless, as later ones cover them


class SamplesReport(msgspec.Struct, frozen=True):
    run: str
    experiment: str
    exactly_once: bool  # every started stage is verified, and at least one
    stages: list[StageSamples]
    format: int = FORMAT


def verify_samples(
    run: str,
    *,
    stage: str | None = None,
    runs_dir: str | Path = "runs",
    progress: subprocesses.ProgressCallback | None = None,
) -> SamplesReport:
    """Check that each sample was used exactly once per epoch, over all attempts and ranks.

    Args:
        run: An experiment (its newest run) or a run's folder; also RUN/STAGE.
        stage: Only this stage. None: all.
        runs_dir: Folder of all runs.
        progress: Called with the `Progress` of the check.

    Raises:
        UsageError: There is no such run or stage, or its script does not use `tasuki.open_run`.
        TasukiError: The data cannot be opened any more.

    Example:
        >>> tasuki.verify_samples("sine").exactly_once
        True
    """
    opened, named = open_run(run, Path(runs_dir).absolute(), stage=stage)
    stages = opened.experiment.stages
    chosen = stages if named is None else (stage_named(stages, named),)
    checked = subprocesses.run(
        "tasuki.train.samples:check",
        opened.folder.path,
        [one.name for one in chosen],
        result=list[StageSamples],
        progress=progress,
        # The project may have moved away; the run has its own copy of the code.
        cwd=opened.project if opened.project.is_dir() else opened.folder.code,
    )
    if not checked:
        why = "a script must train in `tasuki.open_run`, which records its samples"
        refuse_commands(chosen[0], opened.folder.name, verb="verify samples", why=why)
    statuses = {one.status for one in checked}
    exactly_once = {"verified"} <= statuses <= {"verified", "not started"}
    return SamplesReport(str(opened.folder.path), opened.folder.name, exactly_once, checked)


class GradientCause(msgspec.Struct, frozen=True):
    """One reason why the gradients differ."""

    name: str  # batch_statistics or unequal_pieces
    message: str
    hint: str


class GradientsReport(msgspec.Struct, frozen=True, kw_only=True):
    """The gradient of one effective batch against that of its micro-batches."""

    experiment: str = ""
    stage: str
    equal: bool
    max_relative_difference: float
    parameter: str  # the one with this difference
    loss_whole: float
    loss_in_pieces: float
    samples: int
    micro_batch_size: int  # of the largest piece
    gradient_accumulation: int  # number of pieces
    causes: list[GradientCause]  # empty: equal, or no cause found


def verify_gradients(
    spec: str | Path = "tasuki.yaml",
    *,
    experiment: str | None = None,
    stage: str | None = None,
    overrides: Sequence[str] = (),
    preset: str | None = None,
    samples: int | None = None,
    progress: subprocesses.ProgressCallback | None = None,
) -> GradientsReport:
    """Compare the gradient of one effective batch with that of its micro-batches, in float64.

    Args:
        spec: The spec file.
        experiment: Its name. None: the first.
        stage: Its name. None: the first with a recipe.
        overrides: Settings as `micro_batch=2`, which replace those of the spec.
        preset: Name of an overlay of the spec.
        samples: The most samples to compare. None: the effective batch, at most 64.
        progress: Called with what the check does, as it does it.

    Raises:
        UsageError: The stage has no recipe.
        DataError: The batch cannot be split.
        RecipeError: The gradient cannot be computed in float64 on the CPU.

    Example:
        >>> tasuki.verify_gradients("tasuki.yaml").equal
        True
    """
    resolved = load_resolved_spec(spec, overrides, preset)
    chosen, of_stage = choose_with_recipe(
        resolved,
        experiment,
        stage,
        why_not="tasuki does not compute its gradient",
        hint="`tasuki verify gradients` needs a stage with a `recipe`; choose one with --stage",
    )
    report = subprocesses.run(
        "tasuki.train.gradient_check:check_gradients",
        of_stage,
        resolved.folder,
        of_stage.gpus or resolved.cluster.gpus * resolved.cluster.nodes,
        samples,
        result=GradientsReport,
        progress=progress,
        cwd=resolved.folder,
        environment={**os.environ, "CUDA_VISIBLE_DEVICES": ""},  # the start of CUDA takes seconds
    )
    return msgspec.structs.replace(report, experiment=chosen.name)
