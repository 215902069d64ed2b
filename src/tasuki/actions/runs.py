"""Find runs by name: RUN is an experiment, experiment/stage, or a folder."""

from __future__ import annotations

import difflib
import os
import re
from pathlib import Path

from tasuki.errors import UsageError
from tasuki.store.runs import RunFolder

_NUMBERED = re.compile(r"(.+)-(\d+)")


def list_runs(runs: Path) -> list[RunFolder]:
    """All runs in a folder, by name."""
    if not runs.is_dir():
        return []
    names = sorted(name for name in os.listdir(runs) if not name.startswith("."))
    return [RunFolder(runs / name) for name in names if RunFolder(runs / name).spec.exists()]


def latest_run(runs: Path, experiment: str) -> RunFolder:
    """`runs/<experiment>`, or `…-<n>` with the highest n that `--new` made."""
    numbers = [1]
    for run in list_runs(runs):
        match = _NUMBERED.fullmatch(run.name)
        if match and match[1] == experiment:
            numbers.append(int(match[2]))
    return numbered_run(runs, experiment, max(numbers))


def numbered_run(runs: Path, experiment: str, number: int) -> RunFolder:
    return RunFolder(runs / (experiment if number == 1 else f"{experiment}-{number}"))


def next_run(runs: Path, experiment: str) -> RunFolder:
    """The folder `--new` makes."""
    latest = latest_run(runs, experiment)
    if not latest.spec.exists():
        return latest
    match = _NUMBERED.fullmatch(latest.name)
    number = int(match[2]) if match and latest.name != experiment else 1
    return numbered_run(runs, experiment, number + 1)


def find_run(name: str, runs: Path) -> RunFolder:
    """The run a person means."""
    as_folder = RunFolder(Path(name))
    if as_folder.spec.exists():
        return RunFolder(as_folder.path.absolute())
    experiment = name.split("/", 1)[0]
    latest = latest_run(runs, experiment)
    if latest.spec.exists():
        return latest
    known = [run.name for run in list_runs(runs)]
    near = difflib.get_close_matches(experiment, known, n=1)
    raise UsageError(
        f"there is no run `{name}` in {runs}",
        hint=f"did you mean `{near[0]}`?"
        if near
        else (f"there are: {', '.join(known)}" if known else "`tasuki run` makes runs"),
    )
