"""`tasuki board`."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click

from tasuki.cli.options import look_at_queue, runs_folder, runs_option


@click.command(
    epilog="""\b
Example:  tasuki board
          tasuki board --runs /scratch/me/runs --port 8800
"""
)
@runs_option
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    help="This port, or none (default: the first free one from 8765).",
)
@click.option("--open", "is_opened", is_flag=True, help="Open it in this machine's browser.")
def command(runs: Path | None, port: int | None, is_opened: bool) -> None:
    """Show all runs on a web page, live: curves with preemptions marked, plan and reality, where
    the time went, attempts, machine figures, events, checkpoints and logs. Several runs can be
    laid over each other.

    It listens on this machine alone, and answers only who has the address that is printed: it
    holds a key that is new each time. The page reads, and changes nothing. Ctrl-C ends it.
    """
    from tasuki.clock import SystemClock
    from tasuki.commands.board import RunsSource
    from tasuki.views.board.serve import Address, serve

    folder = runs_folder(runs)
    source = RunsSource(folder, SystemClock(), partial(look_at_queue, folder))

    def tell(address: Address) -> None:
        click.echo(address.url)
        click.echo(f"\nThe runs in {folder}, until Ctrl-C.", err=True)
        click.echo("From your own machine, first open a tunnel to this one:", err=True)
        click.echo(f"  {address.tunnel}", err=True)
        if is_opened:
            click.launch(address.url)

    title = folder.parent.name if folder.name == "runs" else folder.name
    serve(source, title=title, port=port, on_ready=tell)
