"""`tasuki checkpoint show | verify | diff | prune`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from tasuki.cli.options import (
    choose_runs,
    json_option,
    print_json,
    runs_folder,
    runs_option,
    say_which,
)
from tasuki.errors import EXIT_DONE, EXIT_FAILED, UsageError


@click.group(
    epilog="""\b
Example:  tasuki checkpoint show sine
          tasuki checkpoint show sine@1200 --entries '*.weight'
          tasuki checkpoint verify sine
          tasuki checkpoint diff runs/sine runs/sine-2
          tasuki checkpoint prune sine --keep 2
"""
)
def command() -> None:
    """Look into checkpoints: what is in one, is it whole, where do two differ; make room.

    CKPT is RUN (its latest), RUN/STAGE (the stage's latest), RUN@STEP (steps of the whole run),
    RUN/STAGE@STEP (steps of the stage), RUN@latest, RUN@NAME, or the folder of a checkpoint.
    Nothing in it is executed.
    """


@command.command("show", epilog="Example:  tasuki checkpoint show sine@latest --entries optimizer")
@click.argument("what", required=False, metavar="[RUN|CKPT]")
@click.option(
    "--entries",
    "pattern",
    metavar="PATTERN",
    help="Only entries like this: a part of the name, or a pattern such as `*.weight`.",
)
@runs_option
@json_option
def show(what: str | None, pattern: str | None, runs: Path | None, as_json: bool) -> None:
    """The checkpoints of RUN (default: of all runs), newest first; or what is in CKPT.

    `latest` is the one a resume looks at first, `parent` the one from which the last attempt went
    on, `outside` what no resume takes. Only the sizes of files are looked at: `verify` reads them.
    """
    from tasuki.clock import SystemClock
    from tasuki.commands.checkpoint import show_checkpoints

    folder = runs_folder(runs)
    say_which([what], folder)
    told = show_checkpoints(what, runs=folder, now=SystemClock().wall(), pattern=pattern)
    if as_json:
        print_json(told)
        return
    from tasuki.views import checkpoint as view

    view.show_checkpoints(told, folder=str(folder))


@command.command("verify", epilog="Example:  tasuki checkpoint verify sine")
@click.argument("what", required=False, metavar="[RUN|CKPT]")
@click.option("--all", "is_all", is_flag=True, help="The checkpoints of all runs.")
@runs_option
@json_option
def verify(what: str | None, is_all: bool, runs: Path | None, as_json: bool) -> int:
    """Read every byte of every checkpoint of RUN (default: the only run), or of CKPT.

    Says what is wrong with which file, and which checkpoint a resume would take. Exit code 1 if
    something is damaged.
    """
    from tasuki.clock import SystemClock
    from tasuki.commands.checkpoint import verify_checkpoints
    from tasuki.views.waiting import Waiting

    if what is not None and is_all:
        raise UsageError(f"`{what}` and `--all` say two things", hint="give one of them")
    folder = runs_folder(runs)
    say_which([what], folder)
    with Waiting(clock=SystemClock()) as waiting:
        told = verify_checkpoints(what, runs=folder, is_all=is_all, on_progress=waiting)
    if as_json:
        print_json(told)
    else:
        from tasuki.views.checkpoint import show_verified

        show_verified(told, folder=str(folder))
    return EXIT_DONE if told["ok"] else EXIT_FAILED


@command.command("diff", epilog="Example:  tasuki checkpoint diff runs/sine runs/sine-2")
@click.argument("a", metavar="CKPT")
@click.argument("b", metavar="CKPT")
@runs_option
@json_option
def diff(a: str, b: str, runs: Path | None, as_json: bool) -> int:
    """The first entry in which two checkpoints differ and by how much, and all the others.

    Compared are model, optimizer, random states and progress, bit by bit; not when and by which
    attempt they were committed. They may be of two runs. Exit code 0 if they are equal, 1 if not.
    """
    from tasuki.clock import SystemClock
    from tasuki.commands.checkpoint import ComparedBy, diff_checkpoints
    from tasuki.views.waiting import Waiting

    clock, folder = SystemClock(), runs_folder(runs)
    say_which([a, b], folder)
    with Waiting(clock=clock) as waiting:
        asking = ComparedBy(
            python=sys.executable, environment=dict(os.environ), on_progress=waiting
        )
        told = diff_checkpoints(a, b, runs=folder, now=clock.wall(), asking=asking)
    if told["a"]["folder"] == told["b"]["folder"]:
        click.echo(
            f"warning: both mean {told['a']['folder']}; an experiment's name means its newest run, "
            "an earlier one is meant by its folder: `runs/sine`",
            err=True,
        )
    if as_json:
        print_json(told)
    else:
        from tasuki.views.checkpoint import show_difference

        show_difference(told)
    return EXIT_DONE if told["equal"] else EXIT_FAILED


@command.command("prune", epilog="Example:  tasuki checkpoint prune sine --dry-run")
@click.argument("run")
@click.option("--keep", type=int, metavar="N", help="How many stay (default: `save.keep`).")
@click.option("--dry-run", is_flag=True, help="Say what would be removed.")
@runs_option
@json_option
def prune(run: str, keep: int | None, dry_run: bool, runs: Path | None, as_json: bool) -> int:
    """Remove old checkpoints of RUN, and what killed attempts left.

    The newest that are whole stay (each is read first; 2 at least), and the one from which the last
    attempt went on. Drafts of earlier attempts, damaged checkpoints that were set aside, and frozen
    parameters that nothing refers to go too. Refused while the run is running.
    """
    from tasuki.clock import SystemClock
    from tasuki.commands.prune import prune_run
    from tasuki.views.waiting import Waiting

    clock = SystemClock()
    (folder,) = choose_runs([run], runs)
    with Waiting(clock=clock) as waiting:
        told = prune_run(folder, now=clock.wall(), keep=keep, is_dry=dry_run, on_progress=waiting)
    if as_json:
        print_json(told)
    else:
        from tasuki.views.checkpoint import show_pruned

        show_pruned(told)
    return EXIT_FAILED if told["stopped"] else EXIT_DONE
