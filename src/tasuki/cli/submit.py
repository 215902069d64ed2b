"""`tasuki submit`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import click

from tasuki.cli.options import (
    WithCommand,
    deadline_option,
    json_option,
    make_request,
    make_slurm,
    name_option,
    print_json,
    read_work,
    spec_options,
    user,
)

if TYPE_CHECKING:
    from tasuki.commands.plan import PlanRequest


@click.command(
    cls=WithCommand,
    epilog="Example:  tasuki submit --time 16h --memory 128G --extra reservation=class",
)
@spec_options
@deadline_option
@name_option
@click.option("--new", "is_new", is_flag=True, help="Begin a new run beside the old one.")
@click.option("--time", "limit", metavar="16h", help="`cluster.time_limit` of each job.")
@click.option("--memory", metavar="128G", help="`cluster.memory` of each node.")
@click.option("--no-requeue", is_flag=True, help="Stop, saved, where a job ends early.")
@click.option("--extra", multiple=True, metavar="KEY=VALUE", help="A further option of sbatch.")
@click.option(
    "--accept-change", "accepted", multiple=True, metavar="KEY", help="Go on although KEY changed."
)
@click.option("--profile", "is_profiled", is_flag=True, help="Tell where a step's time goes.")
@click.option("--dry-run", is_flag=True, help="Print scripts and dependencies; change nothing.")
@json_option
def command(
    spec: str,
    experiments: tuple[str, ...],
    config: str | None,
    stages: tuple[str, ...],
    settings: tuple[str, ...],
    deadline: str | None,
    name: str | None,
    is_new: bool,
    limit: str | None,
    memory: str | None,
    no_requeue: bool,
    extra: tuple[str, ...],
    accepted: tuple[str, ...],
    is_profiled: bool,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Give the work to Slurm: jobs inside the limits, each once. They hand over at time limits and
    preemptions, come back by themselves, and evaluate. Submit again to go on with what is left.
    A command after `--` is submitted as an experiment of its own, in this folder.

    Exit codes: 0 submitted (or nothing to do), 1 refused by Slurm, 2 usage.
    """
    own = (
        *([f"cluster.time_limit={limit}"] if limit else []),
        *([f"cluster.memory={memory}"] if memory else []),
        *(["cluster.requeue=false"] if no_requeue else []),
        *(f"cluster.extra.{pair if '=' in pair else f'{pair}=true'}" for pair in extra),
    )
    resolved = read_work(
        spec, (*settings, *own), config, name=name, experiments=experiments, stages=stages
    )
    request = make_request(
        resolved,
        experiments,
        stages,
        is_new=is_new,
        measure=False,
        deadline=deadline,
    )
    request = replace(request, is_profiled=is_profiled)
    return submit_and_show(request, accepted=accepted, is_dry=dry_run, as_json=as_json)


def submit_and_show(
    request: PlanRequest,
    *,
    accepted: tuple[str, ...] = (),
    lifts_hold: bool = False,
    takes_current_code: bool = False,
    is_dry: bool = False,
    as_json: bool,
) -> int:
    """Submit with a line for each job on stderr and the summary on stdout."""
    from tasuki.clock import SystemClock
    from tasuki.commands.submit import SubmitRequest, submit
    from tasuki.spec.site import load_site

    result = submit(
        SubmitRequest(
            plan=request,
            clock=SystemClock(),
            slurm=make_slurm(),
            user=user(),
            site=load_site(environ=request.environment),
            accepted=accepted,
            lifts_hold=lifts_hold,
            takes_current_code=takes_current_code,
            is_dry=is_dry,
            on_note=lambda note: click.echo(note, err=True),
            on_submitted=lambda name, number: click.echo(f"job {number}: {name}", err=True),
        )
    )
    values = result.as_json(now=SystemClock.wall())
    if as_json:
        print_json(values)
        return 0
    from tasuki.views.submit import show_submitted

    runs, unit = request.spec.runs, "slot" if request.spec.cluster.gpu == "cpu" else "GPU"
    show_submitted(values, python=request.python, runs=runs, is_dry=is_dry, unit=unit)
    return 0
