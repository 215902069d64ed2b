"""Verbs that prove: drills, checkpoints, audits, and the gradient of a trade."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tasuki.api.inputs import CLOCK, make_request, read_spec
from tasuki.commands.asking import Asking
from tasuki.commands.audit import audit_run
from tasuki.commands.checkpoint import (
    ComparedBy,
    diff_checkpoints,
    show_checkpoints,
    verify_checkpoints,
)
from tasuki.commands.drill import DrillRequest, run_drill
from tasuki.commands.equiv import EquivRequest, prove_stage
from tasuki.commands.fair import compare_experiments, compare_runs
from tasuki.commands.machine import look_around
from tasuki.commands.prune import prune_run
from tasuki.commands.runs import find_run


def drill(
    spec: str | Path = "tasuki.yaml",
    *,
    experiment: str | None = None,
    stage: str | None = None,
    scenarios: Sequence[str] = (),
    settings: Sequence[str] = (),
    config: str | None = None,
    keep: bool = False,
) -> dict[str, Any]:
    """Interrupt a run in the worst places and compare it bit for bit: `equal` tells."""
    request = make_request(
        read_spec(spec, settings, config), [experiment] if experiment else [], ()
    )
    return run_drill(
        DrillRequest(plan=request, clock=CLOCK, stage=stage, scenarios=tuple(scenarios), keep=keep)
    )


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


def audit(run: str, *, stage: str | None = None, runs: str | Path = "runs") -> dict[str, Any]:
    """Was each sample used exactly once per epoch, over all attempts? `is_proven` tells."""
    return audit_run(
        run,
        stage=stage,
        runs=Path(runs).absolute(),
        python=sys.executable,
        environment=dict(os.environ),
    )


def equiv(
    *sources: str | Path,
    experiments: Sequence[str] = (),
    stage: str | None = None,
    samples: int | None = None,
    compare: bool = False,
    intended: Sequence[str] = (),
    settings: Sequence[str] = (),
    config: str | None = None,
    runs: str | Path = "runs",
) -> dict[str, Any]:
    """Has the trade of a stage the gradient of the plain batch? `verdict` tells, `culprits` why
    not. With `compare`: may the experiments of a spec, or these runs, be compared? `fair` tells."""
    environment = dict(os.environ)
    asking = Asking(python=sys.executable, environment=environment)
    if compare and len(sources) > 1:
        names = [str(source) for source in sources]
        return compare_runs(names, Path(runs).absolute(), intended=intended, asking=asking)
    spec = read_spec(sources[0] if sources else "tasuki.yaml", settings, config)
    if compare:
        return compare_experiments(spec, experiments, intended=intended, asking=asking)
    return prove_stage(
        EquivRequest(
            spec=spec,
            machine=look_around(environment),
            asking=asking,
            experiment=next(iter(experiments), None),
            stage=stage,
            samples=samples,
        )
    )
