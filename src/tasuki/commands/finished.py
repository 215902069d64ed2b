"""Which stage of which run is meant: RUN, RUN/STAGE, or the last stage that is finished."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from pathlib import Path

import msgspec

from tasuki.commands.runs import find_run, split_stage
from tasuki.errors import RunError, UsageError
from tasuki.runs.atomic import read_json, shaped
from tasuki.runs.remains import what_is_gone
from tasuki.runs.runs import RunFolder
from tasuki.spec.resolved import (
    ResolvedCluster,
    ResolvedExperiment,
    ResolvedStage,
    experiment_from_plain,
)


@dataclass(frozen=True, slots=True)
class FrozenRun:
    """A run as it was begun."""

    folder: RunFolder
    experiment: ResolvedExperiment
    cluster: ResolvedCluster
    project: Path
    """The spec's folder."""

    @property
    def finished(self) -> list[str]:
        names = [stage.name for stage in self.experiment.stages]
        return [name for name in names if self.folder.stage(name).metrics.exists()]


def open_run(name: str, runs: Path, *, stage: str | None = None) -> tuple[FrozenRun, str | None]:
    """The run a person means, and the stage if they name one."""
    folder = find_run(name, runs)
    value = read_json(folder.spec)
    with shaped(folder.spec):
        run = FrozenRun(
            folder,
            experiment_from_plain(value["spec"]),
            msgspec.convert(value["cluster"], ResolvedCluster),
            Path(value["folder"]),
        )
    _, in_name = split_stage(name)
    if stage is not None and in_name and stage != in_name:
        raise UsageError(f"`{name}` and `--stage {stage}` name two stages", hint="give one of them")
    return run, stage or in_name


def stage_named(stages: tuple[ResolvedStage, ...], name: str) -> ResolvedStage:
    """The stage of that name, or the nearest one in words."""
    names = [stage.name for stage in stages]
    if name not in names:
        near = difflib.get_close_matches(name, names, n=1)
        raise UsageError(
            f"there is no stage `{name}`",
            hint=f"did you mean `{near[0]}`?" if near else f"there are: {', '.join(names)}",
        )
    return stages[names.index(name)]


def finished_stage(run: FrozenRun, name: str | None) -> ResolvedStage:
    """The stage of that name, which must be finished; without a name the last one that is."""
    finished = run.finished
    stage = None if name is None else stage_named(run.experiment.stages, name)
    if stage is not None and name in finished:
        return stage
    if run.folder.is_complete() and len(finished) < len(run.experiment.stages):
        gone = what_is_gone(run.folder)
        words = gone.words or "not all of its stages are in its folder any more"
        raise RunError(
            f"run `{run.folder.name}` is complete, but {words}",
            hint=gone.hint or "`tasuki status` tells what is there",
        )
    if stage is not None:
        told = f"finished: {', '.join(finished)}" if finished else "`tasuki status` tells more"
        raise RunError(f"stage `{name}` of run `{run.folder.name}` is not finished", hint=told)
    if not finished:
        raise RunError(
            f"run `{run.folder.name}` has no finished stage yet",
            hint="`tasuki status` tells how far it is",
        )
    return stage_named(run.experiment.stages, finished[-1])
