"""`tasuki estimate`."""

from __future__ import annotations

import os
import sys

import click

from tasuki.cli.options import ManyValues, json_option, print_json, read_spec
from tasuki.errors import EXIT_DONE, EXIT_FAILED


class _ManyGpus(ManyValues):
    """`--gpu a100-40gb h100` too."""

    several = (*ManyValues.several, "--gpu")


@click.command(
    cls=_ManyGpus,
    epilog="""\b
Example:  tasuki estimate --gpu a100-40gb
          tasuki estimate --stages small_512 --gpu a100-40gb h100 --compare
          tasuki estimate --compare --json
""",
)
@click.argument("spec", default="tasuki.yaml", metavar="[SPEC]")
@click.option("--gpu", "gpus", multiple=True, metavar="NAME", help="On this card (or these).")
@click.option("--compare", "compares", is_flag=True, help="A table of cards: those, or all.")
@click.option("--alternatives", is_flag=True, help="Other ways to do each step, and why not.")
@click.option("--experiment", "experiments", multiple=True, help="Only these experiments.")
@click.option("--config", help="A named overlay of the spec's `configs`.")
@click.option("--stages", multiple=True, help="Only these stages.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Override.")
@json_option
def command(
    spec: str,
    gpus: tuple[str, ...],
    compares: bool,
    alternatives: bool,
    experiments: tuple[str, ...],
    config: str | None,
    stages: tuple[str, ...],
    settings: tuple[str, ...],
    as_json: bool,
) -> int:
    """Know before you queue: batch, memory and time of every stage, and what to ask for.

    The data are measured and a step of the recipe is traced, on this machine, without a GPU. What
    the spec gives (`expect`, `micro_batch`, `cluster.memory`, `time_limit`) wins; then come past
    runs, then the trace on a card's data sheet. Every number says where it comes from. What was
    found out is kept in `runs/.probes`; nothing else is changed.

    Exit code 1 if a stage does not fit the card.
    """
    from tasuki.clock import SystemClock
    from tasuki.commands.asking import Asking
    from tasuki.commands.estimate import EstimateRequest, does_fit, estimate
    from tasuki.commands.machine import look_around
    from tasuki.spec.site import load_site
    from tasuki.views.waiting import Waiting

    environment = dict(os.environ)
    resolved = read_spec(spec, settings, config)
    with Waiting(clock=SystemClock()) as waiting:
        asking = Asking(python=sys.executable, environment=environment, on_progress=waiting)
        found = estimate(
            EstimateRequest(
                spec=resolved,
                machine=look_around(environment),
                asking=asking,
                site=load_site(environ=environment),
                experiments=experiments,
                stages=stages,
                gpus=gpus,
                compares=compares,
                alternatives=alternatives,
                words=_words(spec, config, settings),
            )
        )
    if as_json:
        print_json(found)
    else:
        from tasuki.views.estimate import show_estimate

        show_estimate(found)
    return EXIT_DONE if compares or does_fit(found) else EXIT_FAILED


def _words(spec: str, config: str | None, settings: tuple[str, ...]) -> tuple[str, ...]:
    """What `submit` needs to mean the same spec."""
    return (
        *([spec] if spec != "tasuki.yaml" else []),
        *(["--config", config] if config else []),
        *(word for setting in settings for word in ("--set", setting)),
    )
