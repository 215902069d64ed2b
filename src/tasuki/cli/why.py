"""`tasuki why`."""

from __future__ import annotations

from pathlib import Path

import click

from tasuki.cli.options import choose_runs, json_option, print_json, runs_option


@click.command(epilog="Example:  tasuki why sine")
@click.argument("run")
@runs_option
@json_option
def command(run: str, runs: Path | None, as_json: bool) -> None:
    """Why every attempt of a run ended, what was saved and lost, and where the time went."""
    from tasuki.clock import SystemClock
    from tasuki.commands.why import tell_why

    (folder,) = choose_runs([run], runs, only_shows=True)
    why = tell_why(folder, now=SystemClock.wall())
    if as_json:
        print_json(why)
        return
    from tasuki.views.why import show_why

    show_why(why)
