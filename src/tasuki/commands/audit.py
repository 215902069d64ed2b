"""`tasuki audit`: prove over all attempts that each sample was used exactly once per epoch."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from tasuki.answers import OnProgress, ask
from tasuki.checkpoint.lineage import list_checkpoints
from tasuki.commands.commands import refuse_commands
from tasuki.commands.finished import open_run, stage_named
from tasuki.runs.atomic import FORMAT


def audit_run(
    name: str,
    *,
    stage: str | None = None,
    runs: Path,
    python: str,
    environment: dict[str, str],
    on_progress: OnProgress = lambda _: None,
) -> dict[str, Any]:
    """The values of `--json`. The work is done in a child process, which writes nothing."""
    run, named = open_run(name, runs, stage=stage)
    stages = run.experiment.stages
    wanted = stages if named is None else (stage_named(stages, named),)
    # A script may have a loop of tasuki's (`open_run`): its checkpoints tell.
    loops = bool(list_checkpoints(run.folder))
    wanted = tuple(stage for stage in wanted if stage.recipe is not None or loops) or wanted
    if not loops:
        why = "which samples a script uses, only the script knows; `tasuki.open_run` in it tells"
        refuse_commands(wanted[0], run.folder.name, verb="audit", why=why)
    # The project may have moved away; the run has its own copy of the code.
    folder = run.project if run.project.is_dir() else run.folder.code
    order = {
        "run": str(run.folder.path),
        "stages": [stage.name for stage in wanted],
        "paths": [str(run.folder.code), str(run.project)],
    }
    found = ask(
        "tasuki.train.audit",
        order,
        python=python,
        environment=environment,
        folder=os.fspath(folder),
        on_progress=on_progress,
    )
    verdicts = {told["verdict"] for told in found["stages"]}
    return {
        "format": FORMAT,
        "experiment": run.folder.name,
        "run": str(run.folder.path),
        "is_proven": "proven" in verdicts and verdicts <= {"proven", "not begun"},
        **found,
    }
