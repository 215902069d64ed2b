"""`tasuki evaluate`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tasuki.cli.options import (
    json_option,
    print_json,
    read_spec,
    runs_folder,
    runs_option,
    say_which,
)
from tasuki.errors import UsageError

if TYPE_CHECKING:
    from tasuki.commands.evaluate import Asked, Evaluation


@click.command(
    epilog="""\b
Example:  tasuki evaluate sine/fine --benchmark
          tasuki evaluate --weights base.pt --data data/test.h5
"""
)
@click.argument("target", required=False, metavar="[RUN|SPEC]")
@click.option("--weights", type=click.Path(path_type=Path), help="Weights: .safetensors or .pt.")
@click.option("--data", multiple=True, help="Other data than `evaluate:` names; may be repeated.")
@click.option("--split", help="Another split (default: as `evaluate:` says, else test).")
@click.option("--stage", help="The stage (default: the last that is finished; of a spec the last).")
@click.option("--benchmark", is_flag=True, help="Also samples/s, latency and peak memory.")
@click.option("--experiment", help="Whose model it is, where the spec has several.")
@click.option("--config", help="A named overlay of the spec's `configs`.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Override.")
@runs_option
@json_option
def command(
    target: str | None,
    weights: Path | None,
    data: tuple[str, ...],
    split: str | None,
    stage: str | None,
    benchmark: bool,
    experiment: str | None,
    config: str | None,
    settings: tuple[str, ...],
    runs: Path | None,
    as_json: bool,
) -> None:
    """Evaluate any weights on any data. Changes nothing.

    RUN or RUN/STAGE: its weights, with the spec and the code the run began with. Else --weights,
    with the spec here (or SPEC) and the code as it is now.
    """
    from tasuki.clock import SystemClock
    from tasuki.commands.evaluate import Asked, evaluate_weights
    from tasuki.views.waiting import Waiting

    asked = Asked(here=Path.cwd(), weights=weights, data=data, split=split, stage=stage)
    overrides = {"--experiment": experiment, "--config": config, "--set": settings}
    if target is None or _is_spec(target):
        chosen = _of_spec(target or "tasuki.yaml", asked, experiment, config, settings)
    else:
        chosen = _of_run(target, asked, runs, [key for key, value in overrides.items() if value])
    click.echo(f"evaluating {chosen.weights} …", err=True)
    with Waiting(clock=SystemClock()) as waiting:
        found = evaluate_weights(
            chosen,
            benchmark=benchmark,
            python=sys.executable,
            environment=dict(os.environ),
            on_progress=waiting,
        )
    if as_json:
        print_json(found)
        return
    from tasuki.views.evaluate import show_evaluation

    show_evaluation(found)


def _is_spec(word: str) -> bool:
    is_file = word.endswith((".yaml", ".yml")) or ".py:" in word
    return is_file or (Path(word) / "tasuki.yaml").is_file()


def _of_spec(
    source: str,
    asked: Asked,
    experiment: str | None,
    config: str | None,
    settings: tuple[str, ...],
) -> Evaluation:
    from tasuki.commands.evaluate import of_spec

    return of_spec(read_spec(source, settings, config), asked, experiment=experiment)


def _of_run(name: str, asked: Asked, runs: Path | None, overrides: list[str]) -> Evaluation:
    from tasuki.commands.evaluate import of_run

    if overrides:
        raise UsageError(
            f"`{overrides[0]}` changes the spec, but a run has its own",
            hint=f"leave `{name}` out and give `--weights` to evaluate with the spec here",
        )
    folder = runs_folder(runs)
    say_which([name], folder)
    return of_run(name, asked, runs=folder)
