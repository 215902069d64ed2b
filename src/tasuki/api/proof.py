"""Functions for checkpoints."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from tasuki.api.inputs import CLOCK
from tasuki.commands.checkpoint import (
    ComparedBy,
    diff_checkpoints,
    show_checkpoints,
    verify_checkpoints,
)
from tasuki.commands.prune import prune_run
from tasuki.commands.runs import find_run


def checkpoint_show(
    what: str | None = None, *, entries: str | None = None, runs: str | Path = "runs"
) -> dict[str, Any]:
    """The checkpoints of a run (of all runs without a name), or what is in one: `sine@1200`."""
    where = Path(runs).absolute()
    return show_checkpoints(what, runs=where, now=CLOCK.wall(), pattern=entries)


def checkpoint_verify(
    what: str | None = None, *, all_runs: bool = False, runs: str | Path = "runs"
) -> dict[str, Any]:
    """Read every byte of a run's checkpoints, or of one: `ok` tells, and `resume` what it takes."""
    return verify_checkpoints(what, runs=Path(runs).absolute(), is_all=all_runs)


def checkpoint_diff(a: str, b: str, *, runs: str | Path = "runs") -> dict[str, Any]:
    """Where two checkpoints differ, and by how much: `equal`, `first`, `differing`."""
    asking = ComparedBy(python=sys.executable, environment=dict(os.environ))
    where = Path(runs).absolute()
    return diff_checkpoints(a, b, runs=where, now=CLOCK.wall(), asking=asking)


def checkpoint_prune(
    run: str, *, keep: int | None = None, is_dry: bool = False, runs: str | Path = "runs"
) -> dict[str, Any]:
    """Remove old checkpoints and what killed attempts left."""
    folder = find_run(run, Path(runs).absolute())
    return prune_run(folder, now=CLOCK.wall(), keep=keep, is_dry=is_dry)
