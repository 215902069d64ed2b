"""`tasuki verify resume | samples | gradients`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tasuki.cli.options import (
    WithCommand,
    json_option,
    print_json,
    runs_folder,
    runs_option,
    say_which,
    typed_command,
)
from tasuki.errors import EXIT_DONE, EXIT_FAILED

if TYPE_CHECKING:
    from tasuki.commands.verify import GradientsReport
    from tasuki.commands.verify_resume import Interruption, ResumeReport


@click.group(
    epilog="""\b
Example:  tasuki verify resume
          tasuki verify resume -- python train.py
          tasuki verify samples sine
          tasuki verify gradients
"""
)
def command() -> None:
    """Prove on your own training that tasuki changes nothing.

    Each prints what it compared and what differs first, with the likely cause. Your runs and their
    folders are only read.
    """


def _stage_options(function: Callable[..., int]) -> Callable[..., int]:
    for decorate in (
        click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override."),
        click.option("--config", "preset", help="A named overlay of the spec's `configs`."),
        click.option("--stage", help="Which of its stages (default: the first one)."),
        click.option("--experiment", help="Which one (default: the first)."),
    ):
        function = decorate(function)
    return function


@command.command(
    cls=WithCommand,
    short_help="Interrupt training, resume it, compare every bit.",
    epilog="""\b
Example:
  tasuki verify resume
  tasuki verify resume --stage fine --keep
  tasuki verify resume sine
  tasuki verify resume -- python train.py
""",
)
@click.argument("target", default="tasuki.yaml", metavar="[SPEC|RUN]")
@_stage_options
@click.option("--keep", is_flag=True, help="Keep the runs also if they are equal.")
@runs_option
@json_option
def resume(target: str, runs: Path | None, as_json: bool, **options: Any) -> int:
    """Interrupt your own training and compare it bit for bit with an uninterrupted run.

    A stage of SPEC or RUN, or your own script, trains for one and a half epochs in a scratch
    folder: once without interruption, then preempted in mid-epoch and at the end of an epoch, and
    killed in a step and in a save. Takes about a minute for a small model. If the two differ, it
    names the first step and entry that differ, and the likely cause. What a script writes outside
    its run folder, it writes each time.

    Exit codes: 0 equal, 1 not equal.
    """
    from tasuki.clock import SystemClock
    from tasuki.commands.verify_resume import verify_resume
    from tasuki.views.waiting import Waiting

    with Waiting(clock=SystemClock()) as waiting:
        report = verify_resume(
            target,
            command=typed_command(),
            runs_dir=runs_folder(runs),
            progress=waiting,
            **options,
        )
    _print(report, as_json, _print_resume)
    return EXIT_DONE if report.equal else EXIT_FAILED


def _print_resume(report: ResumeReport) -> None:
    length = f"{report.steps} steps"
    if report.steps_per_epoch:
        length += f" ({report.steps / report.steps_per_epoch:.1f} epochs)"
    click.echo(f"{report.experiment}/{report.stage}: {length}, {report.duration_s:.0f} s\n")
    for one in report.interruptions:
        click.echo(f"  attempt {one.attempt} {_describe(one)}, resumed from {one.resumed_from}")
    steps = report.compared_checkpoints
    of_steps = f" of steps {steps[0]} to {steps[-1]}" if steps else ""
    num_lines = report.compared_metric_lines
    click.echo(f"\ncompared {len(steps)} checkpoints{of_steps} and {num_lines} metric lines")
    click.echo(f"{report.status.replace('_', ' ')}: {report.message}")
    for note in report.notes:
        click.echo(f"note: {note}")
    if (first := report.first_difference) is not None:
        click.echo(f"first difference: step {first.step}, {first.entry}: {first.message}")
    for cause in report.causes:
        lines = f" ({', '.join(cause.lines)})" if cause.lines else ""
        click.echo(f"\nlikely cause: {cause.message}{lines}\nhint: {cause.hint}")
    if report.folder is not None:
        click.echo(f"\nthe runs are kept in {report.folder}")


def _describe(one: Interruption) -> str:
    if one.kind == "killed_in_save":
        return f"killed while it saved step {one.step}"
    verb = "preempted after" if one.kind == "preempted" else "killed in"
    return f"{verb} step {one.step}{' at the end of an epoch' if one.is_epoch_end else ''}"


@command.command(
    short_help="Was each sample used once per epoch?",
    epilog="Example:  tasuki verify samples sine",
)
@click.argument("run")
@click.option("--stage", help="Only this stage (default: all).")
@runs_option
@json_option
def samples(run: str, stage: str | None, runs: Path | None, as_json: bool) -> int:
    """Check that each sample of RUN was used exactly once per epoch, over all attempts and ranks.

    Compares what checkpoints recorded with the order of samples, built again from the data. RUN may
    be unfinished. Nothing is written.

    Exit codes: 0 verified, 1 other samples were used, or nothing was recorded.
    """
    from tasuki.clock import SystemClock
    from tasuki.commands.verify import verify_samples
    from tasuki.views.text import line_of
    from tasuki.views.waiting import Waiting

    folder = runs_folder(runs)
    say_which([run], folder)
    with Waiting(clock=SystemClock()) as waiting:
        report = verify_samples(run, stage=stage, runs_dir=folder, progress=waiting)
    lines = [
        f"{one.stage}: {one.status}{one.message and ', '}{one.message}" for one in report.stages
    ]
    _print(report, as_json, lambda _: click.echo("\n".join(line_of(line) for line in lines)))
    return EXIT_DONE if report.exactly_once else EXIT_FAILED


@command.command(
    short_help="Does accumulation change the gradient?",
    epilog="""\b
Example:  tasuki verify gradients
          tasuki verify gradients --stage fine --set micro_batch=2 --samples 16
""",
)
@click.argument("spec", default="tasuki.yaml", metavar="[SPEC]")
@_stage_options
@click.option("--samples", type=int, metavar="N", help="The most samples to compare (default: 64).")
@json_option
def gradients(spec: str, as_json: bool, **options: Any) -> int:
    """Compare one effective batch with the same batch in micro-batches, in float64 on the CPU.

    If the gradients differ, the cause is named: BatchNorm, or a mean over unequal pieces.

    Exit codes: 0 equal, 1 not equal.
    """
    from tasuki.clock import SystemClock
    from tasuki.commands.verify import verify_gradients
    from tasuki.views.waiting import Waiting

    with Waiting(clock=SystemClock()) as waiting:
        report = verify_gradients(spec, **options, progress=waiting)
    _print(report, as_json, _print_gradients)
    return EXIT_DONE if report.equal else EXIT_FAILED


def _print_gradients(report: GradientsReport) -> None:
    name, pieces = f"{report.experiment}/{report.stage}", report.gradient_accumulation
    size = f"{pieces} micro-batches of at most {report.micro_batch_size}"
    click.echo(f"{name}: {report.samples} samples at once, and {size}")
    click.echo(f"loss        {report.loss_whole:.9g} and {report.loss_in_pieces:.9g}")
    click.echo(f"difference  {report.max_relative_difference:.1e} (relative; {report.parameter})")
    for cause in report.causes:
        click.echo(f"not equal: {cause.message}\nhint: {cause.hint}")
    if report.equal:
        click.echo("equal: gradient accumulation changes nothing")
    elif not report.causes:
        click.echo("not equal: perhaps in-batch negatives or padding, or a bug of tasuki")


def _print(report: Any, as_json: bool, print_text: Callable[[Any], None]) -> None:
    import msgspec

    if as_json:
        print_json(msgspec.to_builtins(report))
    else:
        print_text(report)
