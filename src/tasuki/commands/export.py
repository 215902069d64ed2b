"""`tasuki export`: a stage's weights as a file of their own, bit for bit."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasuki import subprocesses
from tasuki.commands.commands import refuse_commands
from tasuki.commands.finished import FrozenRun, finished_stage, open_run, stage_named
from tasuki.errors import UsageError
from tasuki.runs.atomic import FORMAT
from tasuki.runs.runs import RunFolder
from tasuki.spec.export import FileFormat, format_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a person asks for."""

    here: Path
    """Where they stand: what they typed is relative to it."""
    to: Path | None = None
    file_format: FileFormat | None = None
    source: str = "best"
    """`best`: the stage's weights; `last`: its newest checkpoint, finished or not."""
    force: bool = False
    is_dry: bool = False


def export_run(
    name: str, wanted: Wanted, *, runs: Path, python: str, environment: dict[str, str]
) -> dict[str, Any]:
    """Write the file; the values of `--json`. The work is done in a child process."""
    run, named = open_run(name, runs)
    stage = _stage_of(run, named, wanted.source)
    refuse_commands(
        stage_named(run.experiment.stages, stage),
        run.folder.name,
        verb="export",
        why="its weights are where the script has put them",
    )
    path, file_format = _target(run, stage, wanted)
    told: dict[str, Any] = {
        "format": FORMAT,
        "experiment": run.experiment.name,
        "stage": stage,
        "from": wanted.source,
        "file": str(path),
        "file_format": file_format,
    }
    if wanted.is_dry:
        return told
    order = {
        "run": str(run.folder.path),
        "stage": stage,
        "source": wanted.source,
        "to": str(path),
        "file_format": file_format,
        "force": wanted.force,
    }
    written = subprocesses.run(
        "tasuki.checkpoint.export:work",
        order,
        python=python,
        environment=environment,
        cwd=os.fspath(run.folder.path),
        result=dict[str, Any],
    )
    return {**told, **written}


def _stage_of(run: FrozenRun, name: str | None, source: str) -> str:
    if source == "best":
        return finished_stage(run, name).name
    if name is not None:
        return stage_named(run.experiment.stages, name).name
    # The one that is being trained, or the last.
    left = [stage.name for stage in run.experiment.stages if stage.name not in run.finished]
    return left[0] if left else run.finished[-1]


def _target(run: FrozenRun, stage: str, wanted: Wanted) -> tuple[Path, FileFormat]:
    """Without a name: `<experiment>-<stage>` here."""
    to = wanted.here / (wanted.to or "")
    if to.is_dir():
        file_format = wanted.file_format or "safetensors"
        to = to / f"{run.folder.name}-{stage}.{file_format}"
    else:
        file_format = format_of(str(wanted.to), told=wanted.file_format)
    own = run.folder.stage(stage).weights
    inside = next((p for p in to.resolve().parents if RunFolder(p).claims.is_dir()), None)
    if inside is not None and to.resolve() != own.resolve():
        raise UsageError(
            f"{to} lies in the run folder {inside}, where only the run itself writes",
            hint="give a place outside of it with `-o`",
        )
    if to.resolve() == own.resolve():
        raise UsageError(
            f"{own} is the run's own file: it is there already", hint="give another name with `-o`"
        )
    return to, file_format
