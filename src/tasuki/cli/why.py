"""`tasuki why`."""

from __future__ import annotations

from pathlib import Path

import click

from tasuki.cli.options import json_option, print_json, runs_folder, runs_option, say_which


@click.command(epilog="Example:  tasuki why sine")
@click.argument("run")
@runs_option
@json_option
def command(run: str, runs: Path | None, as_json: bool) -> None:
    """Why every attempt of a run ended, what was saved and lost, and where the time went."""
    from tasuki.actions.why import find_story, tell_why
    from tasuki.clock import SystemClock

    folder = runs_folder(runs)
    say_which([run], folder)
    why = tell_why(find_story(run, folder), now=SystemClock.wall())
    if as_json:
        print_json(why)
        return
    from tasuki.views.why import show_why

    show_why(why)
