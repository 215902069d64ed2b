"""Find runs by name: RUN is an experiment, experiment/stage, or a folder."""

from __future__ import annotations

import difflib
from pathlib import Path

from tasuki.errors import UsageError
from tasuki.store.find import latest_run, list_runs
from tasuki.store.runs import RunFolder


def find_run(name: str, runs: Path) -> RunFolder:
    """The run a person means."""
    as_folder = RunFolder(Path(name))
    if as_folder.spec.exists():
        return RunFolder(as_folder.path.absolute())
    experiment = name.split("/", 1)[0]
    exact = RunFolder(runs / experiment)
    latest = latest_run(runs, experiment)
    for run in (latest, exact):
        if run.spec.exists():
            return run
    known = [run.name for run in list_runs(runs)]
    near = difflib.get_close_matches(experiment, known, n=1)
    raise UsageError(
        f"there is no run `{name}` in {runs}",
        hint=f"did you mean `{near[0]}`?"
        if near
        else (
            f"there are: {', '.join(known)}"
            if known
            else "is this the folder of the project? (`--runs FOLDER` names another)"
        ),
    )
