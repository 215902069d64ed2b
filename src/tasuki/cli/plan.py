"""`tasuki plan`."""

from __future__ import annotations

import click

from tasuki.cli.options import (
    ManyValues,
    json_option,
    make_request,
    print_json,
    read_spec,
    spec_options,
    time_options,
)


@click.command(
    cls=ManyValues,
    epilog="Example:  tasuki plan --set cluster.time_limit=8h --stages small_512 small_1024",
)
@spec_options
@time_options
@click.option("--new", "is_new", is_flag=True, help="Plan as if nothing were done yet.")
@click.option("--no-measure", is_flag=True, help="Do not measure steps of unknown stages.")
@json_option
def command(
    spec: str,
    experiments: tuple[str, ...],
    config: str | None,
    stages: tuple[str, ...],
    settings: tuple[str, ...],
    deadline: str | None,
    exact: str | None,
    is_new: bool,
    no_measure: bool,
    as_json: bool,
) -> None:
    """Show the jobs, how long they take, how that is known, and the command of every job.

    Times come from `expect`, else from this run's events, else from history, else some steps are
    measured here. Nothing is changed.
    """
    from dataclasses import replace

    from tasuki.actions.plan import make_plan
    from tasuki.clock import SystemClock
    from tasuki.views.waiting import Waiting

    request = make_request(
        read_spec(spec, settings, config),
        experiments,
        stages,
        is_new=is_new,
        measure=not no_measure,
        deadline=deadline,
        exact=exact,
    )
    with Waiting(clock=SystemClock()) as waiting:
        plan = make_plan(replace(request, on_progress=waiting.say))
    if as_json:
        print_json(plan.as_json())
        return
    from tasuki.views.plan import show_plan

    show_plan(plan.as_json(), python=request.python, runs=request.spec.runs)
