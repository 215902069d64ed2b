"""`tasuki extend`."""

from __future__ import annotations

from pathlib import Path

import click

from tasuki.cli.options import choose_runs, json_option, make_slurm, print_json, runs_option, user


@click.command(
    epilog="Example:  tasuki extend sine +2h", context_settings={"ignore_unknown_options": True}
)
@click.argument("run")
@click.argument("amount", metavar="+2h|24h")
@click.option("--dry-run", is_flag=True, help="Say what would be extended.")
@runs_option
@json_option
def command(run: str, amount: str, dry_run: bool, runs: Path | None, as_json: bool) -> None:
    """Give the job that works on a run more time: `+2h` adds, `24h` sets."""
    from tasuki.clock import SystemClock
    from tasuki.commands.cancel import Controller
    from tasuki.commands.extend import extend_run

    (folder,) = choose_runs([run], runs)
    controller = Controller(slurm=make_slurm(), user=user())
    answer = extend_run(folder, amount, clock=SystemClock(), controller=controller, is_dry=dry_run)
    if as_json:
        print_json(answer)
        return
    from tasuki.units import format_seconds

    if answer["limit_s"] is None:
        click.echo(f"would extend job {answer['job']} of {folder.name}")
    else:
        limit = format_seconds(answer["limit_s"])
        click.echo(f"job {answer['job']} of {folder.name} now has {limit} in all")
