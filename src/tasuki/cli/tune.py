"""`tasuki tune`."""

from __future__ import annotations

import os
import sys
from itertools import pairwise
from typing import NoReturn

import click

from tasuki.cli.options import json_option, print_json, read_spec
from tasuki.errors import EXIT_DONE, EXIT_FAILED, UsageError

_EXAMPLES = """\b
Example:
  tasuki tune
  tasuki tune --only precision,compile --budget 5m
  tasuki tune --stage fine --write
  tasuki tune --write precision,workers
  tasuki tune --batch
"""
_WINNERS = "winners"


class _OptionalValue(click.Command):
    """Lets `--write` stand alone: a spec after it is no list of switches."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        spelled = []
        for word, following in pairwise([*args, "--"]):
            is_alone = following.startswith("-") or "/" in following or _is_spec(following)
            spelled.append(f"--write={_WINNERS}" if word == "--write" and is_alone else word)
        return super().parse_args(ctx, spelled)


def _is_spec(word: str) -> bool:
    return word.endswith((".yaml", ".yml")) or ".py:" in word or os.path.isdir(word)  # noqa: PTH112


def _refuse_beside_batch() -> NoReturn:
    raise UsageError(
        "`--batch` takes no switches and has no dry run",
        hint="write `tasuki tune --batch`, with `--write` alone if it is to be written",
    )


@click.command(cls=_OptionalValue, epilog=_EXAMPLES)
@click.argument("spec", default="tasuki.yaml", metavar="[SPEC]")
@click.option("--experiment", help="Which one (default: the first).")
@click.option("--stage", help="Which of its stages (default: the first with a recipe).")
@click.option("--config", help="A named overlay of the spec's `configs`.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Override.")
@click.option(
    "--only",
    metavar="SWITCH,…",
    help="Only these of precision, compile, gradient_checkpointing, micro_batch, workers, "
    "offload, exact.",
)
@click.option("--budget", default="2m", show_default=True, help="How long to measure, about.")
@click.option(
    "--write",
    metavar="[SWITCH,…]",
    help="Write the winners into the spec: all that give up nothing, or these.",
)
@click.option(
    "--batch",
    "is_batch",
    is_flag=True,
    help="Look for the largest micro-batch that fits this device instead.",
)
@click.option(
    "--dry-run", "is_dry", is_flag=True, help="Tell what would be tried; measure nothing."
)
@json_option
def command(
    spec: str,
    experiment: str | None,
    stage: str | None,
    config: str | None,
    settings: tuple[str, ...],
    only: str | None,
    budget: str,
    write: str | None,
    is_batch: bool,
    is_dry: bool,
    as_json: bool,
) -> int:
    """Measure on your own recipe what each switch buys: time, memory, difference in loss.

    Each variant runs beside the stage as it is, in turns of some steps in random order, from the
    same weights on the same samples. A gain is told with its 95 % interval; the first row is the
    baseline against itself, with another seed. What is kept is measured once more together, since
    gains do not multiply. Nothing is changed without `--write`.

    With `--batch`: the largest micro-batch that fits, of each size, tried with its largest samples
    at most four times in all, and what the safety factor leaves of it. A run with `micro_batch:
    auto` does the same at its first start.
    """
    from tasuki.clock import SystemClock
    from tasuki.commands.machine import look_around
    from tasuki.commands.tune import TuneRequest, read_switches, tune_batch, tune_stage
    from tasuki.units import Duration
    from tasuki.views.waiting import Waiting

    wanted = None if write is None else read_switches("" if write == _WINNERS else write)
    chosen = read_switches(only or "")
    if is_batch and (chosen or wanted or is_dry):
        _refuse_beside_batch()
    environment = dict(os.environ)
    with Waiting(clock=SystemClock()) as waiting:
        work = tune_batch if is_batch else tune_stage
        found = work(
            TuneRequest(
                spec=read_spec(spec, settings, config),
                machine=look_around(environment),
                python=sys.executable,
                environment=environment,
                budget_s=Duration.parse(budget).seconds,
                experiment=experiment,
                stage=stage,
                only=chosen,
                write=wanted,
                is_dry=is_dry,
                on_progress=waiting,
                on_begin=lambda text: click.echo(text, err=True),
            )
        )
    if as_json:
        print_json(found)
    else:
        from tasuki.views.tune import show_batch, show_tuning

        show = show_batch if is_batch else show_tuning
        show(found)
    is_failed = found["written"] is not None and found["keep"] and not found["written"]["file"]
    return EXIT_FAILED if is_failed else EXIT_DONE
