"""`tasuki evaluate`: any weights on any data, with the spec here or a run's own. Writes nothing."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasuki import subprocesses
from tasuki.commands.commands import refuse_commands
from tasuki.commands.finished import finished_stage, open_run, stage_named
from tasuki.commands.machine import cpus_for, device_for, look_around
from tasuki.commands.plan import choose_experiments
from tasuki.data.tempo import share_cpus
from tasuki.errors import UsageError, WeightsError
from tasuki.runs.atomic import FORMAT
from tasuki.runs.nearby import look_beside
from tasuki.runs.runs import RunFolder
from tasuki.spec.resolved import (
    ResolvedCluster,
    ResolvedEvaluate,
    ResolvedExperiment,
    ResolvedSpec,
    ResolvedStage,
    to_plain,
)
from tasuki.spec.values import Sizes
from tasuki.subprocesses import ProgressCallback
from tasuki.train.allocator import choose_allocator


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a person gave on top of the spec."""

    here: Path
    """Where they stand: what they typed is relative to it."""
    weights: Path | None = None
    data: tuple[str, ...] = ()
    split: str | None = None
    stage: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Everything that is needed for one evaluation."""

    experiment: str
    stage: ResolvedStage
    weights: Path
    data: str | list[str] | None
    sizes: Sizes | None
    """Only samples of these; None: of all."""
    split: str
    cluster: ResolvedCluster
    paths: tuple[Path, ...]
    """Where the recipe is imported from."""
    folder: Path
    """Relative data are relative to it."""
    run: RunFolder | None = None


def of_run(name: str, asked: Asked, *, runs: Path) -> Evaluation:
    """With a run's frozen spec and code; its stage's weights unless others are given."""
    run, named = open_run(name, runs, stage=asked.stage)
    if asked.weights is None:
        stage = finished_stage(run, named)
        weights = run.folder.stage(stage.name).weights
    else:
        stages = run.experiment.stages
        stage, weights = stage_named(stages, named or stages[-1].name), asked.weights
    # The project may have moved away; the run has its own copy of the code.
    folder = run.project if run.project.is_dir() else run.folder.code
    return _evaluation(
        run.experiment.name,
        stage,
        weights,
        asked,
        cluster=run.cluster,
        paths=(run.folder.code, run.project),
        folder=folder,
        run=run.folder,
    )


def of_spec(spec: ResolvedSpec, asked: Asked, *, experiment: str | None = None) -> Evaluation:
    """With the spec here and the code as it is now."""
    if asked.weights is None:
        raise UsageError(
            "which weights are to be evaluated?",
            hint="`tasuki evaluate RUN`, or `tasuki evaluate --weights FILE --data DATA`",
        )
    chosen = _one_experiment(spec, experiment)
    name = asked.stage or (spec.only_stages or (chosen.stages[-1].name,))[-1]
    return _evaluation(
        chosen.name,
        stage_named(chosen.stages, name),
        asked.weights,
        asked,
        cluster=spec.cluster,
        paths=(Path(spec.folder),),
        folder=Path(spec.folder),
    )


def _one_experiment(spec: ResolvedSpec, name: str | None) -> ResolvedExperiment:
    """The one that is named; else any, if they all make the same model."""
    experiments = choose_experiments(spec, [name] if name else (), ())
    models = {(e.stages[-1].recipe, repr(e.stages[-1].params)) for e in experiments}
    if len(models) > 1:
        names = ", ".join(e.name for e in experiments)
        raise UsageError(
            f"the spec's experiments make different models: {names}",
            hint="say whose model the weights belong to: `--experiment NAME`",
        )
    return experiments[0]


def _evaluation(
    experiment: str,
    stage: ResolvedStage,
    weights: Path,
    asked: Asked,
    *,
    cluster: ResolvedCluster,
    paths: tuple[Path, ...],
    folder: Path,
    run: RunFolder | None = None,
) -> Evaluation:
    why = "`evaluate: {command: …}` of the spec evaluates it as a part of its run"
    refuse_commands(stage, experiment, verb="evaluate", why=why)
    weights = asked.here / weights
    if not weights.is_file():
        raise WeightsError(
            f"there are no weights at {weights}; {look_beside(weights)}",
            hint="`tasuki export RUN` writes a run's weights",
        )
    evaluate = stage.evaluate or ResolvedEvaluate()
    of_stage = evaluate.data if evaluate.data is not None else stage.data
    return Evaluation(
        experiment=experiment,
        stage=stage,
        weights=weights,
        data=_sources(asked, folder) if asked.data else of_stage,
        sizes=None if asked.data or evaluate.data is not None else stage.size,
        split=asked.split or evaluate.split,
        cluster=cluster,
        paths=paths,
        folder=folder,
        run=run,
    )


def _sources(asked: Asked, folder: Path) -> str | list[str]:
    """As typed; what is a path seen from here must stay one seen from the spec's folder."""
    named = [
        str(asked.here / data) if asked.here != folder and (asked.here / data).exists() else data
        for data in asked.data
    ]
    return named[0] if len(named) == 1 else named


def evaluate_weights(
    evaluation: Evaluation,
    *,
    benchmark: bool,
    python: str,
    environment: dict[str, str],
    on_progress: ProgressCallback = lambda _: None,
) -> dict[str, Any]:
    """The values of `--json`. The work is done in a child process."""
    stage, cluster = evaluation.stage, evaluation.cluster
    machine = look_around(environment)
    device = device_for(cluster, machine)
    workers = stage.loader.workers if isinstance(stage.loader.workers, int) else None
    cpus = cpus_for(cluster, machine) // cluster.gpus
    threads, _ = share_cpus(cpus, is_gpu=device == "cuda", workers=workers)
    order = {
        "stage": to_plain(stage),
        "weights": str(evaluation.weights),
        "data": evaluation.data,
        "sizes": to_plain(evaluation.sizes) if evaluation.sizes is not None else None,
        "split": evaluation.split,
        "paths": [str(path) for path in evaluation.paths],
        "run": str(evaluation.run.path) if evaluation.run else None,
        "threads": threads,
        "device": device,
        "benchmark": benchmark,
    }
    found = subprocesses.run(
        "tasuki.train.assess:work",
        order,
        python=python,
        environment={
            **environment,
            **choose_allocator(stage.allocator, environment, device=device).variables,
            "CUBLAS_WORKSPACE_CONFIG": ":4096:8",  # as a run's own evaluation has it
        },
        cwd=os.fspath(evaluation.folder),
        progress=on_progress,
        result=dict[str, Any],
    )
    return {
        "format": FORMAT,
        "experiment": evaluation.experiment,
        "stage": stage.name,
        "weights": str(evaluation.weights),
        "data": evaluation.data,
        "split": evaluation.split,
        **found,
    }
