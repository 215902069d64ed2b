"""`tasuki status`."""

from __future__ import annotations

from pathlib import Path

import click

from tasuki.cli.options import (
    json_option,
    look_at_queue,
    print_json,
    runs_folder,
    runs_in,
    runs_option,
)


@click.command(epilog="Example:  tasuki status --json | jq '.runs[].state'")
@click.argument("run", nargs=-1)
@runs_option
@json_option
def command(run: tuple[str, ...], runs: Path | None, as_json: bool) -> None:
    """Where every run stands, one line each: state, stage, bar, step, time left of the whole run
    (50/90 %), last loss, attempts, goodput, deadline.

    Waits in queues are not in the time left. With `deadline: …` or `--deadline` a run says whether
    it is in danger: whether what is left takes longer in one of ten cases.
    """
    from tasuki.clock import SystemClock
    from tasuki.commands.status import read_status
    from tasuki.runs.find import list_shown

    folder = runs_folder(runs)
    chosen = runs_in(folder, run, only_shows=True) or list_shown(folder)
    status = read_status(chosen, now=SystemClock.wall(), known=look_at_queue(folder))
    if as_json:
        print_json(status)
        return
    from tasuki.views.status import show_status

    show_status(status, folder=str(folder))
