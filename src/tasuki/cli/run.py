"""`tasuki run`."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from tasuki.cli.options import (
    WithCommand,
    deadline_option,
    json_option,
    make_request,
    name_option,
    print_json,
    read_work,
    spec_options,
    unit_of,
)
from tasuki.cli.torchrun import enter_torchrun
from tasuki.errors import StoreError

if TYPE_CHECKING:
    from tasuki.commands.plan import PlanRequest
    from tasuki.jobs.local import Preemption
    from tasuki.spec.resolved import ResolvedSpec


@click.command(
    cls=WithCommand,
    epilog="""\b
Example:  tasuki run --set epochs=2 --preempt-every 20s
          tasuki run -- python train.py --lr 3e-4
""",
)
@spec_options
@deadline_option
@name_option
@click.option("--new", "is_new", is_flag=True, help="Begin a new run beside the old one.")
@click.option(
    "--accept-change", "accepted", multiple=True, metavar="KEY", help="Go on although KEY changed."
)
@click.option("--preempt-every", metavar="20s", help="Preempt each attempt after this long.")
@click.option("--preempt-at", metavar="12s", help="Preempt once, this long after the beginning.")
@click.option("--profile", "is_profiled", is_flag=True, help="Tell where a step's time goes.")
@click.option("--here", "is_here", is_flag=True, help="On this machine, though Slurm is near.")
@click.option("--dry-run", is_flag=True, help="The same as `tasuki plan`.")
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
    accepted: tuple[str, ...],
    preempt_every: str | None,
    preempt_at: str | None,
    is_profiled: bool,
    is_here: bool,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Train here. Plans jobs inside the limits, starts them, hands over at time limits and
    preemptions, evaluates. Run again to go on; a finished run ends at once. Ctrl-C hands over.
    A command after `--` is run as an experiment of its own, in this folder.

    Exit codes: 0 done, 1 failed or held, 2 usage, 75 not finished: run again.
    """
    torchrun = enter_torchrun(os.environ)
    if torchrun is not None and not torchrun.leads:
        return 0
    resolved = read_work(spec, settings, config, name=name, experiments=experiments, stages=stages)
    request = make_request(resolved, experiments, stages, is_new=is_new, deadline=deadline)
    needs_times = resolved.cluster.time_limit_s is not None or request.deadline_s is not None
    request = replace(request, measure=needs_times or dry_run or _is_fitted(resolved))
    if torchrun is not None:
        request = torchrun.put_ranks(request)
    request = replace(request, is_profiled=is_profiled)
    if dry_run:
        return _dry_run(request, as_json)
    if not is_here:
        refuse_login_node(resolved)
    return run_and_show(
        request,
        accepted=accepted,
        preemption=preemption_of(preempt_every, preempt_at),
        waits_s=torchrun.waits_s(request) if torchrun is not None else 0.0,
        as_json=as_json,
    )


def _is_fitted(spec: ResolvedSpec) -> bool:
    """Is anything left open that is chosen by traces of steps?"""
    from tasuki.commands.fitting import is_open

    stages = [stage for experiment in spec.experiments for stage in experiment.stages]
    return spec.cluster.gpu != "cpu" and any(map(is_open, stages))


def refuse_login_node(spec: ResolvedSpec) -> None:
    """Where the spec is meant for Slurm, training on the login node is hardly what is wanted."""
    import shutil

    cluster = spec.cluster
    is_meant = cluster.backend == "slurm" or (cluster.backend == "auto" and cluster.partition)
    if not is_meant or "SLURM_JOB_ID" in os.environ or shutil.which("sbatch") is None:
        return
    from tasuki.errors import UsageError

    raise UsageError(
        "this spec is for Slurm, and this is no job of it: a login node?",
        hint="`tasuki submit` gives the work to Slurm; `tasuki run --here` trains on this machine",
    )


def preemption_of(every: str | None, at: str | None) -> Preemption:
    from tasuki.jobs.local import Preemption
    from tasuki.units import Duration

    return Preemption(
        every_s=Duration.parse(every).seconds if every else None,
        at_s=Duration.parse(at).seconds if at else None,
    )


def run_and_show(
    request: PlanRequest,
    *,
    accepted: tuple[str, ...] = (),
    preemption: Preemption | None = None,
    lifts_hold: bool = False,
    takes_current_code: bool = False,
    waits_s: float = 0.0,
    as_json: bool,
) -> int:
    """Run with a live view on stderr and the summary on stdout."""
    from tasuki.clock import SystemClock
    from tasuki.commands.run import RunRequest, run_here
    from tasuki.commands.status import brief_run
    from tasuki.runs.find import latest_run
    from tasuki.views.live import LiveView

    def look() -> list[dict[str, Any]]:
        from pathlib import Path

        told, root = [], Path(request.spec.runs)
        for name in [experiment.name for experiment in request.experiments]:
            with suppress(StoreError):  # its own trouble: the others are shown, and go on
                folder = request.folders.get(name) or latest_run(root, name)
                if folder.spec.exists():
                    told.append(brief_run(folder, now=SystemClock.wall()))
        return told

    with LiveView(look, clock=SystemClock()) as view:
        result = run_here(
            RunRequest(
                plan=replace(request, on_progress=view.begin),
                clock=SystemClock(),
                accepted=accepted,
                preemption=preemption,
                lifts_hold=lifts_hold,
                takes_current_code=takes_current_code,
                waits_s=waits_s,
                on_plan=partial(view.show_plan, unit=unit_of(request)),
                on_tick=view.tick,
                on_event=view.say,
            )
        )
    values = result.as_json(now=SystemClock.wall())
    if as_json:
        print_json(values)
    else:
        from tasuki.views.status import show_results

        show_results(values, runs=_unusual(request.spec.runs))
        if values["profiles"]:
            from tasuki.views.profile import show_profiles

            show_profiles(values["profiles"], runs=request.spec.runs)
    return result.exit_code


def _unusual(runs: str) -> str:
    """A folder that nobody would look for here."""
    from pathlib import Path

    return "" if Path(runs).resolve() == Path("runs").resolve() else runs


def _dry_run(request: PlanRequest, as_json: bool) -> int:
    from tasuki.clock import SystemClock
    from tasuki.commands.plan import make_plan
    from tasuki.views.plan import show_plan
    from tasuki.views.waiting import Waiting

    with Waiting(clock=SystemClock()) as waiting:
        plan = make_plan(replace(request, on_progress=waiting.say))
    if as_json:
        print_json(plan.as_json())
    else:
        unit = unit_of(request)
        show_plan(plan.as_json(), python=request.python, runs=request.spec.runs, unit=unit)
    return 0
