"""`tasuki plan`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import click

from tasuki.cli.options import (
    ManyValues,
    json_option,
    make_request,
    print_json,
    read_spec,
    spec_options,
    time_options,
    unit_of,
)
from tasuki.errors import EXIT_DONE, EXIT_FAILED

if TYPE_CHECKING:
    from collections.abc import Callable

    from tasuki.commands.plan import PlanRequest
    from tasuki.spec.resolved import ResolvedSpec


@click.command(
    cls=ManyValues,
    epilog="""\b
Example:  tasuki plan --set cluster.time_limit=8h --stages small_512 small_1024
          tasuki plan --what-if gpus=2,4,8 --what-if gpu=a100-40gb,h100-80gb
""",
)
@spec_options
@time_options
@click.option("--new", "is_new", is_flag=True, help="Plan as if nothing were done yet.")
@click.option("--no-measure", is_flag=True, help="Measure no steps now; what was before counts.")
@click.option("--fresh", is_flag=True, help="Measure steps again, whatever is kept of them.")
@click.option("--fits", is_flag=True, help="Other ways to do each step, and what they would gain.")
@click.option(
    "--what-if", "knobs", multiple=True, metavar="KEY=A,B", help="Compare plans of these values."
)
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
    fresh: bool,
    fits: bool,
    knobs: tuple[str, ...],
    as_json: bool,
) -> int:
    """Show the jobs, how long they take, how that is known, and the command of every job.

    Times come from `expect`, else from this run's events, else from history, else some steps are
    measured here, once: what was found out is kept in `runs/.probes` while code, data and machine
    stay the same. What is `auto` (checkpointing, GPUs) is chosen, and what lost is shown; `--fits`
    does so for stages of which everything is given. Nothing else is changed.

    With --what-if every combination of the values is planned, and the plans are compared: keys of
    the cluster (gpus, gpu, time_limit, nodes) or any that --set takes. Exit code 1 if all of them
    are refused.
    """

    def load(more: tuple[str, ...]) -> ResolvedSpec:
        return read_spec(spec, (*settings, *more), config)

    ask = partial(
        make_request,
        experiments=experiments,
        stages=stages,
        is_new=is_new,
        measure=not no_measure,
        fresh=fresh,
        deadline=deadline,
        exact=exact,
    )
    if knobs:
        return _compare(knobs, load, ask, as_json=as_json)
    return _show(ask(load(())), fits=fits, as_json=as_json)


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


def _compare(
    texts: tuple[str, ...],
    load: Callable[[tuple[str, ...]], ResolvedSpec],
    ask: Callable[[ResolvedSpec], PlanRequest],
    *,
    as_json: bool,
) -> int:
    from tasuki.clock import SystemClock
    from tasuki.commands.what_if import WhatIfRequest, read_knobs, what_if
    from tasuki.views.waiting import Waiting

    knobs = read_knobs(texts)
    with Waiting(clock=SystemClock()) as waiting:
        found = what_if(WhatIfRequest(knobs=knobs, load=load, request=ask, on_progress=waiting.say))
    if as_json:
        print_json(found)
    else:
        from tasuki.views.what_if import show_what_if

        show_what_if(found)
    is_any = any(case["error"] is None for case in found["cases"])
    return EXIT_DONE if is_any else EXIT_FAILED
