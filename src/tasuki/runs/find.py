"""Which folders are runs of which experiment, and what stages a run has."""

from __future__ import annotations

import os
import re
from pathlib import Path

from tasuki.runs.atomic import read_json, shaped, translated
from tasuki.runs.runs import RunFolder

_NUMBERED = re.compile(r"(.+)-(\d+)")


def list_runs(runs: Path) -> list[RunFolder]:
    """All runs in a folder, by name."""
    return [run for run in _folders(runs) if is_run(run)]


def is_run(run: RunFolder) -> bool:
    """Has it a spec? One that may not be looked at counts: whoever reads it says why not."""
    try:
        run.spec.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True


def _folders(runs: Path) -> list[RunFolder]:
    with translated(runs):
        try:
            names = os.listdir(runs)
        except (FileNotFoundError, NotADirectoryError):
            return []
    return [RunFolder(runs / name) for name in sorted(names) if not name.startswith(".")]


def stage_names(run: RunFolder) -> list[str]:
    """In the order of the spec with which it began."""
    with shaped(run.spec):
        return [str(stage["name"]) for stage in read_json(run.spec)["stages"]]


def is_of_scripts(run: RunFolder) -> bool:
    """Are all its stages commands? Then nothing of a recipe applies to it."""
    with shaped(run.spec):
        return all(stage.get("command") is not None for stage in read_json(run.spec)["stages"])


def is_remains(run: RunFolder) -> bool:
    """Was it a run once, and has lost its spec? Somebody deleted a part of it. Others have folders
    called `checkpoints` too: only names that tasuki alone gives count."""
    if is_run(run):
        return False
    if run.training_state.exists() or run.marker.exists():
        return True
    places = (run.claims, run.checkpoints, run.events)
    return any(_OURS.fullmatch(name) for place in places for name in _names_in(place)) or any(
        (run.stages / name / "metrics.json").exists() for name in _names_in(run.stages)
    )


_OURS = re.compile(r"\d+|step-\d{9,}\.c\d+.*|\d+\.\d+\.[\w-]+\.jsonl")
"""A claim, a checkpoint, a file of events."""


def _names_in(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def list_shown(runs: Path) -> list[RunFolder]:
    """All runs in a folder by name, and what is left of those that have lost their spec."""
    return [run for run in _folders(runs) if is_run(run) or is_remains(run)]


def runs_of(runs: Path, experiment: str) -> dict[int, RunFolder]:
    """By number: `runs/<experiment>` and what `--new` made beside it."""
    found = {}
    for run in list_runs(runs):
        match = _NUMBERED.fullmatch(run.name)
        number = int(match[2]) if match and match[1] == experiment else 1
        if run.name in (experiment, f"{experiment}-{number}") and _experiment(run) == experiment:
            found[number] = run
    return found


def latest_run(runs: Path, experiment: str) -> RunFolder:
    """The one with the highest number; the first, which may not exist yet, if there is none."""
    found = runs_of(runs, experiment)
    return found[max(found)] if found else RunFolder(runs / experiment)


def next_run(runs: Path, experiment: str) -> RunFolder:
    """The folder `--new` makes."""
    number = max(runs_of(runs, experiment), default=0) + 1
    if number == 1 and is_remains(RunFolder(runs / experiment)):
        number = 2  # what is left there of a run is not written into
    while number > 1 and (runs / f"{experiment}-{number}").exists():
        number += 1  # an experiment may be called so
    return RunFolder(runs / (experiment if number == 1 else f"{experiment}-{number}"))


def _experiment(run: RunFolder) -> str:
    return str(read_json(run.spec).get("experiment"))
