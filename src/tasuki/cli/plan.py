"""`tasuki plan`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tasuki.cli.options import (
    ManyValues,
    deadline_option,
    json_option,
    make_request,
    print_json,
    read_spec,
    spec_options,
    unit_of,
)
from tasuki.errors import EXIT_DONE

if TYPE_CHECKING:
    from tasuki.commands.plan import PlanRequest


@click.command(
    cls=ManyValues,
    epilog="""\b
Example:  tasuki plan --set cluster.time_limit=8h --stages small_512 small_1024
""",
)
@spec_options
@deadline_option
@click.option("--new", "is_new", is_flag=True, help="Plan as if nothing were done yet.")
@click.option("--no-measure", is_flag=True, help="Measure no steps now; what was before counts.")
@click.option("--fresh", is_flag=True, help="Measure steps again, whatever is kept of them.")
@click.option("--fits", is_flag=True, help="Other ways to do each step, and what they would gain.")
@json_option
def command(
    spec: str,
    experiments: tuple[str, ...],
    config: str | None,
    stages: tuple[str, ...],
    settings: tuple[str, ...],
    deadline: str | None,
    is_new: bool,
    no_measure: bool,
    fresh: bool,
    fits: bool,
    as_json: bool,
) -> int:
    """Show the jobs, how long they take, how that is known, and the command of every job.

    Times come from `expect`, else from this run's events, else from history, else some steps are
    measured here, once: what was found out is kept in `runs/.probes` while code, data and machine
    stay the same. What is `auto` (checkpointing, GPUs) is chosen, and what lost is shown; `--fits`
    does so for stages of which everything is given. Nothing else is changed.
    """

    request = make_request(
        read_spec(spec, settings, config),
        experiments,
        stages,
        is_new=is_new,
        measure=not no_measure,
        fresh=fresh,
        deadline=deadline,
    )
    return _show(request, fits=fits, as_json=as_json)


def _show(request: PlanRequest, *, fits: bool, as_json: bool) -> int:
    from dataclasses import replace

    from tasuki.clock import SystemClock
    from tasuki.commands.plan import make_plan
    from tasuki.views.waiting import Waiting

    with Waiting(clock=SystemClock()) as waiting:
        plan = make_plan(replace(request, tells_fits=fits, on_progress=waiting.say)).as_json()
    if as_json:
        print_json(plan)
    else:
        from tasuki.views.plan import show_plan

        show_plan(plan, python=request.python, runs=request.spec.runs, unit=unit_of(request))
    return EXIT_DONE
