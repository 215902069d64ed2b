"""`tasuki history`."""

from __future__ import annotations

from pathlib import Path

import click

from tasuki.cli.options import ManyValues, json_option, print_json, runs_folder, runs_option


@click.command(cls=ManyValues, epilog="Example:  tasuki history --since 30d --gpu a100-40gb")
@click.option("--experiment", "experiments", multiple=True, help="Only these experiments.")
@click.option("--recipe", help="Only this recipe: as in the spec, or its class.")
@click.option("--gpu", help="Only on this card: as in the spec, or a part of its name; or `cpu`.")
@click.option("--since", help="Only from then on: `7d`, `36h`, or a day as 2026-11-17.")
@runs_option
@json_option
def command(
    experiments: tuple[str, ...],
    recipe: str | None,
    gpu: str | None,
    since: str | None,
    runs: Path | None,
    as_json: bool,
) -> None:
    """What past stages took, newest first: steps, memory, waits, attempts.

    Every finished stage adds a line; `plan` and estimates of later stages learn from them. Lines
    that cannot be read are named, and left out.
    """
    from tasuki.clock import SystemClock
    from tasuki.commands.history import Filter, list_history

    folder = runs_folder(runs)
    now = SystemClock.wall()
    wanted = Filter.read(experiments, recipe=recipe, gpu=gpu, since=since, now=now)
    found = list_history(folder, wanted)
    if as_json:
        print_json(found)
        return
    from tasuki.views.history import show_history

    show_history(found, folder=str(folder), now=now)
