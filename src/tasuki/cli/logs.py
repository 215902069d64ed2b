"""`tasuki logs`."""

from __future__ import annotations

from pathlib import Path

import click

from tasuki.cli.options import choose_runs, json_option, look_at_queue, print_json, runs_option


@click.command(epilog="Example:  tasuki logs sine -f")
@click.argument("run")
@click.option("-f", "--follow", is_flag=True, help="Go on until the run works no more.")
@click.option("--err", "errors", is_flag=True, help="Errors instead of output.")
@click.option("--attempt", type=int, help="Only this attempt.")
@runs_option
@json_option
def command(
    run: str,
    follow: bool,
    errors: bool,
    attempt: int | None,
    runs: Path | None,
    as_json: bool,
) -> None:
    """What a run printed, over all attempts, oldest first."""
    from tasuki.clock import SystemClock
    from tasuki.commands.logs import (
        follow_logs,
        join_logs,
        read_logs,
        refuse_unknown,
        why_nothing,
    )
    from tasuki.runs.atomic import FORMAT
    from tasuki.views.text import LogText

    (folder,) = choose_runs([run], runs, only_shows=True)
    refuse_unknown(folder, attempt)
    if as_json:
        texts = join_logs(read_logs(folder, errors=errors, attempt=attempt))
        print_json({"format": FORMAT, "experiment": folder.name, "logs": texts})
        return
    if follow:
        parts = follow_logs(
            folder,
            clock=SystemClock(),
            errors=errors,
            attempt=attempt,
            is_queued=lambda: bool(look_at_queue(folder.path.parent).of(folder)),
            tell=_tell,
        )
    else:
        parts = read_logs(folder, errors=errors, attempt=attempt, tell=_tell)
    last = ""
    texts_of: dict[str, LogText] = {}
    for name, text in parts:
        if name != last:
            click.echo(f"==> {name}", err=True)
            last = name
        click.echo(texts_of.setdefault(name, LogText()).take(text), nl=False)
    if not last:
        click.echo(why_nothing(folder, errors=errors, attempt=attempt), err=True)


def _tell(words: str) -> None:
    click.echo(f"warning: {words}", err=True)
