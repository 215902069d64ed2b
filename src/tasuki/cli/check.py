"""`tasuki check`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from tasuki.cli.options import ManyValues, json_option, print_json, spec_options
from tasuki.errors import EXIT_DONE, EXIT_FAILED

if TYPE_CHECKING:
    from tasuki.commands.check import CheckReport

_WORDS = {"ok": "ok", "failed": "FAILED", "skipped": "skipped", "not_reached": "-", "none": "."}


@click.command(
    cls=ManyValues,
    epilog="""\b
Example:
  tasuki check
  tasuki check --stages fine --micro-batch 1
  tasuki check tasuki.yaml --experiment progressive --time-budget 3m
""",
)
@spec_options
@click.option("--micro-batch", type=click.IntRange(1), metavar="N", help="Samples at once.")
@click.option(
    "--time-budget", default="60s", metavar="TIME", help="What is not done by then is left (60s)."
)
@click.option("--allow-network", is_flag=True, help="Let Hugging Face and W&B use the network.")
@json_option
def command(
    spec: str,
    experiments: tuple[str, ...],
    stages: tuple[str, ...],
    config: str | None,
    settings: tuple[str, ...],
    as_json: bool,
    **options: Any,
) -> int:
    """Run two real steps of every stage, save, load and evaluate. About a minute.

    Finds what usually fails after hours in a queue. Every stage takes its largest samples, in a
    scratch folder that is removed. Then disk, loggers, notifications, time limit and partition.
    Without the spec's GPU it takes the CPU.

    Exit codes: 0 all passed, 1 not.
    """
    import msgspec

    from tasuki.clock import SystemClock
    from tasuki.commands.check import check
    from tasuki.views.waiting import Waiting

    with Waiting(clock=SystemClock()) as waiting:
        report = check(
            spec,
            experiments=experiments,
            stages=stages,
            overrides=settings,
            preset=config,
            progress=waiting,
            **options,
        )
    if as_json:
        print_json(msgspec.to_builtins(report))
    else:
        _print(report)
    return EXIT_DONE if report.ok else EXIT_FAILED


def _print(report: CheckReport) -> None:
    from tasuki.commands.check import CHECKS

    width = max(len(f"{row.experiment}/{row.stage}") for row in report.stages)
    click.echo("  ".join(["stage".ljust(width), *CHECKS]))
    for row in report.stages:
        cells = [_WORDS[row.results[name].status].ljust(len(name)) for name in CHECKS]
        click.echo("  ".join([f"{row.experiment}/{row.stage}".ljust(width), *cells]).rstrip())
    for row in report.stages:
        name = f"{row.experiment}/{row.stage}"
        for check in CHECKS:
            result = row.results[check]
            if result.status == "failed":
                _print_problem(f"{name}: {check}", result.message, result.hint)
            elif result.message and check == CHECKS[-1]:
                click.echo(f"{name}: {result.message}")
        for note in row.notes:
            click.echo(f"{name}: {note}")
    for problem in report.problems:
        _print_problem(problem.name, problem.message, problem.hint)
    click.echo(f"{'all passed' if report.ok else 'not passed'}, in {report.duration_s:.0f} s")


def _print_problem(where: str, message: str, hint: str) -> None:
    click.echo(f"\n{where}: {message}" + (f"\nhint: {hint}" if hint else ""))
