"""`tasuki resume`."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import click

from tasuki.cli.options import choose_runs, json_option, make_request, print_json, runs_option
from tasuki.cli.torchrun import enter_torchrun


@click.command(epilog="Example:  tasuki resume sine --from step-1200")
@click.argument("run")
@click.option(
    "--code",
    type=click.Choice(["frozen", "current"]),
    default="frozen",
    help="`current` takes the project's code as it is now into the run.",
)
@click.option(
    "--accept-change",
    "accepted",
    multiple=True,
    metavar="KEY",
    help="Go on although KEY changed: `data`, `code` (the run's copy of it); `complete`: go back "
    "with `--from` although the run is complete.",
)
@click.option(
    "--from",
    "from_",
    metavar="step-N|best|PATH",
    help="Go back to this checkpoint first (N counts over all stages); what came later is put "
    "aside, not lost.",
)
@click.option("--here/--submit", "is_here", default=None, help="Where (default: as last time).")
@click.option("--dry-run", is_flag=True, help="Show what would be done.")
@runs_option
@json_option
def command(
    run: str,
    code: str,
    accepted: tuple[str, ...],
    from_: str | None,
    is_here: bool | None,
    dry_run: bool,
    runs: Path | None,
    as_json: bool,
) -> int:
    """Go on with a run that is held, failed, cancelled or was stopped, from its last checkpoint,
    or with --from from another one: the run is then as it was at that step, whatever came later."""
    from tasuki.actions.back import plan_going_back
    from tasuki.actions.plan import make_plan
    from tasuki.actions.resume import (
        frozen_deadline,
        frozen_spec,
        last_backend,
        refuse_back_in_job,
        resume_in_its_job,
    )
    from tasuki.cli.run import run_and_show
    from tasuki.cli.submit import submit_and_show
    from tasuki.clock import SystemClock

    torchrun = enter_torchrun(os.environ)
    if torchrun is not None and not torchrun.leads:
        return 0
    (folder,) = choose_runs([run], runs)
    back = None
    if from_ is not None:
        back = plan_going_back(folder, from_, accepted=accepted)
        refuse_back_in_job(folder, SystemClock())
    spec, experiment = frozen_spec(folder, os.environ, goes_back=back is not None)
    if not (accepted or dry_run or back or torchrun is not None or is_here is not None):
        job = resume_in_its_job(folder, SystemClock(), takes_current_code=code == "current")
        if job is not None:
            return _show_job(folder.name, job, as_json=as_json)
    request = replace(
        make_request(spec, (), (), measure=spec.cluster.time_limit_s is not None),
        folders={experiment.name: folder},
        deadline_at=frozen_deadline(folder),
        back=back,
    )
    if torchrun is not None:
        request, is_here = torchrun.put_ranks(request), True
    is_submitted = last_backend(folder) == "slurm" if is_here is None else not is_here
    if is_submitted:
        return submit_and_show(
            request,
            accepted=accepted,
            lifts_hold=True,
            takes_current_code=code == "current",
            is_dry=dry_run,
            as_json=as_json,
        )
    if not dry_run:
        return run_and_show(
            request,
            accepted=accepted,
            lifts_hold=True,
            takes_current_code=code == "current",
            waits_s=torchrun.waits_s(request) if torchrun is not None else 0.0,
            as_json=as_json,
        )
    plan = make_plan(request).as_json()
    if as_json:
        print_json(plan if back is None else {**plan, "back": back.as_json()})
    else:
        from tasuki.views.plan import show_plan

        for line in back.in_words() if back is not None else ():
            click.echo(line)
        show_plan(plan, python=request.python, runs=spec.runs)
    return 0


def _show_job(run: str, job: str, *, as_json: bool) -> int:
    from tasuki.store.atomic import FORMAT

    if as_json:
        print_json({"format": FORMAT, "experiment": run, "job": job})
    else:
        click.echo(f"run `{run}` goes on in job {job}, which still works for others", err=True)
    return 0
