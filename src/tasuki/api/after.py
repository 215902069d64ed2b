"""Verbs after a run: evaluate, export, report, and what past stages took."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tasuki.api.inputs import CLOCK
from tasuki.commands.discover import load_resolved_spec
from tasuki.commands.evaluate import Asked, evaluate_weights, of_run, of_spec
from tasuki.commands.export import Wanted, export_run
from tasuki.commands.history import Filter, list_history
from tasuki.commands.report import gather_report
from tasuki.commands.runs import find_run
from tasuki.errors import UsageError
from tasuki.runs.atomic import write_bytes
from tasuki.runs.find import list_shown
from tasuki.spec.export import FileFormat


def evaluate(
    run: str | None = None,
    *,
    weights: str | Path | None = None,
    data: str | Sequence[str] = (),
    split: str | None = None,
    stage: str | None = None,
    benchmark: bool = False,
    spec: str | Path = "tasuki.yaml",
    experiment: str | None = None,
    settings: Sequence[str] = (),
    config: str | None = None,
    runs: str | Path = "runs",
) -> dict[str, Any]:
    """Any weights on any data: those of a run with its own spec, or `weights` with a spec."""
    asked = Asked(
        here=Path.cwd(),
        weights=Path(weights) if weights is not None else None,
        data=(data,) if isinstance(data, str) else tuple(data),
        split=split,
        stage=stage,
    )
    if run is not None:
        evaluation = of_run(run, asked, runs=Path(runs).absolute())
    else:
        evaluation = of_spec(
            load_resolved_spec(spec, settings, config), asked, experiment=experiment
        )
    return evaluate_weights(
        evaluation, benchmark=benchmark, python=sys.executable, environment=dict(os.environ)
    )


def export(
    run: str,
    *,
    to: str | Path | None = None,
    file_format: FileFormat | None = None,
    source: str = "best",
    force: bool = False,
    runs: str | Path = "runs",
) -> dict[str, Any]:
    """Write a stage's weights to a file."""
    wanted = Wanted(
        here=Path.cwd(),
        to=Path(to) if to is not None else None,
        file_format=file_format,
        source=source,
        force=force,
    )
    environment = dict(os.environ)
    return export_run(
        run, wanted, runs=Path(runs).absolute(), python=sys.executable, environment=environment
    )


def history(
    *,
    runs: str | Path = "runs",
    experiments: Sequence[str] = (),
    recipe: str | None = None,
    gpu: str | None = None,
    since: str | None = None,
) -> dict[str, Any]:
    """What past stages took, newest first; `since` is a span (`7d`) or a day (`2026-11-17`)."""
    wanted = Filter.read(experiments, recipe=recipe, gpu=gpu, since=since, now=CLOCK.wall())
    return list_history(Path(runs), wanted)


def report(
    *names: str, to: str | Path | None = None, runs: str | Path = "runs", points: int = 600
) -> dict[str, Any]:
    """All there is to tell of some runs (without names: of all), and written to `to` as its ending
    says: .html, .md or .csv. Each curve has at most so many points."""
    folder = Path(runs).absolute()
    form = None if to is None else Path(to).suffix.lower().removeprefix(".")
    if form not in (None, "html", "md", "csv"):
        raise UsageError(f"a report cannot be a .{form} file", hint="name one .html, .md or .csv")
    chosen = [find_run(name, folder, only_shows=True) for name in dict.fromkeys(names)]
    chosen = chosen or list_shown(folder)
    found = gather_report(folder, chosen, now=CLOCK.wall(), points=points)
    if to is not None and form is not None:
        from tasuki.views.report import render

        write_bytes(Path(to), render(found, form).encode("utf-8"))
    return found
