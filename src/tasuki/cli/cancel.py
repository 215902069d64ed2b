"""`tasuki cancel`."""

from __future__ import annotations

from pathlib import Path

import click

from tasuki.cli.options import choose_runs, json_option, make_slurm, print_json, runs_option, user


@click.command(epilog="Example:  tasuki cancel sine")
@click.argument("run")
@click.option("--dry-run", is_flag=True, help="Say what would be ended.")
@runs_option
@json_option
def command(run: str, dry_run: bool, runs: Path | None, as_json: bool) -> None:
    """End a run, saved. It stays cancelled until `tasuki run`, `submit` or `resume`."""
    from tasuki.clock import SystemClock
    from tasuki.commands.cancel import Controller, cancel_run

    (folder,) = choose_runs([run], runs)
    controller = Controller(slurm=make_slurm(), user=user())
    answer = cancel_run(folder, clock=SystemClock(), controller=controller, is_dry=dry_run)
    if as_json:
        print_json(answer)
        return
    if dry_run:
        click.echo(f"would cancel {folder.name} ({answer['state']})")
        return
    click.echo(f"{folder.name} is {answer['state']}; `tasuki resume {folder.name}` goes on")
