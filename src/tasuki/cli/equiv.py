"""`tasuki equiv`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click

from tasuki.cli.options import (
    ManyValues,
    json_option,
    print_json,
    read_spec,
    runs_folder,
    runs_option,
    say_which,
)
from tasuki.errors import EXIT_DONE, EXIT_FAILED, UsageError

_EXAMPLES = """\b
Example:
  tasuki equiv
  tasuki equiv --stage fine --set micro_batch=1 --samples 16
  tasuki equiv --compare
  tasuki equiv --compare --experiment small large --intended lr
  tasuki equiv --compare runs/small runs/large
"""


@click.command(cls=ManyValues, epilog=_EXAMPLES)
@click.argument("sources", nargs=-1, metavar="[SPEC | RUN RUN …]")
@click.option("--experiment", "experiments", multiple=True, help="Which (default: the first).")
@click.option("--stage", help="Which of its stages (default: the first with a recipe).")
@click.option("--config", help="A named overlay of the spec's `configs`.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Override.")
@click.option("--samples", type=int, metavar="N", help="The most samples of a step to compare.")
@click.option("--compare", "compares", is_flag=True, help="Compare experiments, or runs, fairly.")
@click.option("--intended", metavar="KEY,…", help="Keys that are meant to differ (--compare).")
@runs_option
@json_option
def command(
    sources: tuple[str, ...],
    experiments: tuple[str, ...],
    stage: str | None,
    config: str | None,
    settings: tuple[str, ...],
    samples: int | None,
    compares: bool,
    intended: str | None,
    runs: Path | None,
    as_json: bool,
) -> int:
    """Prove that the way a batch is split leaves its gradient unchanged.

    Your model and data, in float64 on the CPU: the micro-batches, accumulation, gradient
    checkpointing and ranks of the spec against one batch of the whole, parameter by parameter, the
    partial last step included. Where they differ, an experiment for each possible culprit names it:
    BatchNorm, a mean over tokens, dropout, a partial last group, checkpointing, padding, data, a
    loss over the whole batch.

    With `--compare`: may the experiments of the spec, or these runs, be compared? Lists all that
    differs without being meant to: effective batch, samples, steps, evaluation, seed, schedule,
    code, data. `params`, `recipe`, what `each` goes over and `--intended` keys are meant.

    Exit codes: 0 equal (or equal but for random numbers), or fair; 1 not.
    """
    _refuse_idle(sources, experiments, stage, samples, intended, compares=compares)
    if compares:
        found = _compare(sources, experiments, config, settings, intended, runs)
    else:
        found = _prove(sources, experiments, stage, config, settings, samples)
    if as_json:
        print_json(found)
    else:
        from tasuki.views.equiv import show_equiv, show_fairness

        (show_fairness if compares else show_equiv)(found)
    is_well = found["fair"] if compares else found["verdict"] != "unequal"
    return EXIT_DONE if is_well else EXIT_FAILED


def _refuse_idle(
    sources: tuple[str, ...],
    experiments: tuple[str, ...],
    stage: str | None,
    samples: int | None,
    intended: str | None,
    *,
    compares: bool,
) -> None:
    """What would have no effect."""
    if compares and (stage or samples is not None):
        raise UsageError(
            "`--compare` takes whole experiments: --stage and --samples have no effect",
            hint="leave them out, or leave --compare out",
        )
    if compares and len(sources) > 1 and experiments:
        raise UsageError("runs are given, and experiments of a spec", hint="give one kind of them")
    if not compares and (len(sources) > 1 or len(experiments) > 1 or intended):
        raise UsageError(
            "the gradient of one stage of one experiment is proved at a time",
            hint="to compare several experiments or runs write --compare",
        )


def _prove(
    sources: tuple[str, ...],
    experiments: tuple[str, ...],
    stage: str | None,
    config: str | None,
    settings: tuple[str, ...],
    samples: int | None,
) -> dict[str, Any]:
    from tasuki.clock import SystemClock
    from tasuki.commands.asking import Asking
    from tasuki.commands.equiv import EquivRequest, prove_stage
    from tasuki.commands.machine import look_around
    from tasuki.views.waiting import Waiting

    environment = dict(os.environ)
    spec = read_spec(sources[0] if sources else "tasuki.yaml", settings, config)
    with Waiting(clock=SystemClock()) as waiting:
        asking = Asking(python=sys.executable, environment=environment, on_progress=waiting)
        return prove_stage(
            EquivRequest(
                spec=spec,
                machine=look_around(environment),
                asking=asking,
                experiment=experiments[0] if experiments else None,
                stage=stage,
                samples=samples,
            )
        )


def _compare(
    sources: tuple[str, ...],
    experiments: tuple[str, ...],
    config: str | None,
    settings: tuple[str, ...],
    intended: str | None,
    runs: Path | None,
) -> dict[str, Any]:
    from tasuki.clock import SystemClock
    from tasuki.commands.asking import Asking
    from tasuki.commands.fair import compare_experiments, compare_runs
    from tasuki.runs.runs import RunFolder
    from tasuki.views.waiting import Waiting

    keys = [word.strip() for word in (intended or "").split(",") if word.strip()]
    with Waiting(clock=SystemClock()) as waiting:
        asking = Asking(python=sys.executable, environment=dict(os.environ), on_progress=waiting)
        if len(sources) > 1 or (sources and RunFolder(Path(sources[0])).spec.exists()):
            folder = runs_folder(runs)
            say_which(sources, folder)
            return compare_runs(sources, folder, intended=keys, asking=asking)
        spec = read_spec(sources[0] if sources else "tasuki.yaml", settings, config)
        return compare_experiments(spec, experiments, intended=keys, asking=asking)
