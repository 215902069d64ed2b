"""Find runs by name: RUN is an experiment, experiment/stage, or a folder (with a stage, too).

An experiment's name means its newest run, also where a folder is called just so: whoever began one
anew with `--new` goes on with that. Earlier ones are meant by their folders.
"""

from __future__ import annotations

import difflib
from pathlib import Path

from tasuki.errors import UsageError
from tasuki.runs.find import is_remains, is_run, latest_run, list_runs
from tasuki.runs.remains import refuse_remains
from tasuki.runs.runs import RunFolder


def find_run(name: str, runs: Path, *, only_shows: bool = False) -> RunFolder:
    """The run a person means. Who only shows takes also what is left of one without a spec."""
    base, _ = split_stage(name)
    as_folder = RunFolder(Path(base))
    if is_run(as_folder):
        return RunFolder(as_folder.path.absolute())
    experiment = base
    exact = RunFolder(runs / experiment)
    latest = latest_run(runs, experiment)
    for run in (latest, exact):
        if is_run(run):
            return run
    for run in (RunFolder(as_folder.path.absolute()), exact):
        if only_shows and is_remains(run):
            return run
        refuse_remains(run)
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


def split_stage(name: str) -> tuple[str, str | None]:
    """(the run's name or folder, the stage if one is named)."""
    if is_run(RunFolder(Path(name))):
        return name, None
    folder, _, last = name.rstrip("/").rpartition("/")
    if folder and is_run(RunFolder(Path(folder))):
        return folder, last
    experiment, _, stage = name.partition("/")
    return experiment, stage.rstrip("/") or None


def which_is_meant(name: str, runs: Path) -> str:
    """For who types a name that is also an earlier run's; empty where it can mean one run only."""
    base, _ = split_stage(name)
    earlier = RunFolder(runs / base)
    if is_run(RunFolder(Path(base))) or not is_run(earlier):
        return ""
    latest = latest_run(runs, base)
    if latest.name == earlier.name:
        return ""
    try:
        folder = earlier.path.relative_to(Path.cwd())
    except ValueError:
        folder = earlier.path
    return f"`{base}` means `{latest.name}`, its newest run; the one called so is `{folder}`"
