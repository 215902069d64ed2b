"""`tasuki tune`: options and table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from tasuki.cli.options import json_option, print_json

if TYPE_CHECKING:
    from tasuki.commands.tune import TuneReport, TuneRow


@click.command(
    epilog="""\b
Example:
  tasuki tune
  tasuki tune --only precision,compile --time-budget 5m
  tasuki tune --stage fine --write
  tasuki tune --batch-size
"""
)
@click.argument("spec", default="tasuki.yaml", metavar="[SPEC]")
@click.option("--experiment", help="Which one (default: the first).")
@click.option("--stage", help="Which of its stages (default: the first with a recipe).")
@click.option("--config", "preset", help="A named overlay of the spec's `configs`.")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override.")
@click.option(
    "--only",
    default="",
    metavar="NAMES",
    help="Only these settings: precision, compile, gradient_checkpointing, offload, exact, "
    "micro_batch, loader.workers.",
)
@click.option("--batch-size", is_flag=True, help="Find the largest micro-batch instead.")
@click.option("--write", is_flag=True, help="Write the winners into the spec.")
@click.option("--time-budget", default="2m", show_default=True, help="Time to measure, about.")
@json_option
def command(spec: str, only: str, as_json: bool, **options: Any) -> None:
    """Measure on your own recipe which settings make a step faster.

    Each setting trains in turns with the stage as it is. A gain is reported only if the rounds
    show with 95 % confidence that it is above 3 %. All winners are then measured together.
    `exact: false` wins only if --only names it. Without --write nothing is changed.

    With --batch-size: the largest micro-batch that fits the device, found by real steps with the
    largest samples, times the safety factor.
    """
    from tasuki.clock import SystemClock
    from tasuki.commands.tune import tune
    from tasuki.views.waiting import Waiting

    names = [name.strip() for name in only.split(",") if name.strip()]
    with Waiting(clock=SystemClock()) as waiting:
        report = tune(spec, only=names, progress=waiting, **options)
    if as_json:
        import msgspec

        print_json(msgspec.to_builtins(report))
    else:
        _print_report(report)


def _print_report(report: TuneReport) -> None:
    from tasuki.units import format_step
    from tasuki.views.text import line_of

    click.echo(f"{report.experiment}/{report.stage} on {report.device}")
    if report.default is not None:
        click.echo(f"as it is: {format_step(report.default.step_s)} per step\n")
    for row in report.rows:
        click.echo(line_of(_format_row(row, _format_changes(row.changes))))
    if report.together is not None:
        click.echo(line_of(_format_row(report.together, "together")))
    for note in report.notes:
        click.echo(line_of(note))
    if report.winners:
        where = f"written to {report.written_to}" if report.written_to else "use --write to keep it"
        click.echo(f"\nwinners: {_format_changes(report.winners)} ({where})")
    elif report.rows:
        click.echo("\nno setting makes steps faster")
    elif not report.batch_sizes:
        click.echo("none of these settings can be changed here")


def _format_row(row: TuneRow, label: str) -> str:
    from tasuki.units import format_bytes

    parts = [f"{label:<30}"]
    if row.speedup is not None:
        parts.append(f"{row.speedup:.2f}x ({row.speedup_min:.2f} to {row.speedup_max:.2f})")
        parts.append(f"loss {row.loss_difference:+.1%}")
    if row.peak_memory_bytes is not None:
        parts.append(format_bytes(row.peak_memory_bytes))
    return "  ".join([*parts, row.status.replace("_", " ") + (row.reason and f": {row.reason}")])


def _format_changes(changes: dict[str, bool | int | str]) -> str:
    plain = (str(v).lower() if isinstance(v, bool) else str(v) for v in changes.values())
    return ", ".join(f"{key}: {value}" for key, value in zip(changes, plain, strict=True))
