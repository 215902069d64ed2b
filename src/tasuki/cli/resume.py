"""`tasuki resume`."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tasuki.cli.options import choose_runs, json_option, make_request, print_json, runs_option
from tasuki.cli.torchrun import enter_torchrun

if TYPE_CHECKING:
    from tasuki.commands.back import GoingBack
    from tasuki.commands.plan import PlanRequest
    from tasuki.runs.runs import RunFolder
    from tasuki.spec.resolved import ResolvedExperiment, ResolvedSpec


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
    from tasuki.clock import SystemClock
    from tasuki.commands.resume import frozen_spec, resume_in_its_job

    torchrun = enter_torchrun(os.environ)
    if torchrun is not None and not torchrun.leads:
        return 0
    (folder,) = choose_runs([run], runs)
    back = _plan_back(folder, from_, accepted) if from_ is not None else None
    spec, experiment = frozen_spec(folder, os.environ, goes_back=back is not None)
    is_current = code == "current"
    if not (accepted or dry_run or back or torchrun is not None or is_here is not None):
        job = resume_in_its_job(folder, SystemClock(), takes_current_code=is_current)
        if job is not None:
            return _show_job(folder.name, job, as_json=as_json)
    request = _request(folder, spec, experiment, back)
    if torchrun is not None:
        request, is_here = torchrun.put_ranks(request), True
    how = _How(accepted=accepted, is_current=is_current, is_dry=dry_run, as_json=as_json)
    if _is_submitted(folder, is_here):
        return how.submit(request)
    if dry_run:
        return how.show(request)
    return how.run(request, waits_s=torchrun.waits_s(request) if torchrun is not None else 0.0)


def _plan_back(folder: RunFolder, from_: str, accepted: tuple[str, ...]) -> GoingBack:
    from tasuki.clock import SystemClock
    from tasuki.commands.back import plan_going_back
    from tasuki.commands.resume import refuse_back_in_job

    back = plan_going_back(folder, from_, accepted=accepted)
    refuse_back_in_job(folder, SystemClock())
    return back


def _request(
    folder: RunFolder, spec: ResolvedSpec, experiment: ResolvedExperiment, back: GoingBack | None
) -> PlanRequest:
    from tasuki.commands.resume import frozen_deadline

    return replace(
        make_request(spec, (), (), measure=spec.cluster.time_limit_s is not None),
        folders={experiment.name: folder},
        deadline_at=frozen_deadline(folder),
        back=back,
    )


def _is_submitted(folder: RunFolder, is_here: bool | None) -> bool:
    from tasuki.commands.resume import last_backend

    return last_backend(folder) == "slurm" if is_here is None else not is_here


@dataclass(frozen=True, slots=True, kw_only=True)
class _How:
    """As a person asked for it, wherever it is done."""

    accepted: tuple[str, ...]
    is_current: bool
    is_dry: bool
    as_json: bool

    def submit(self, request: PlanRequest) -> int:
        from tasuki.cli.submit import submit_and_show

        return submit_and_show(
            request,
            accepted=self.accepted,
            lifts_hold=True,
            takes_current_code=self.is_current,
            is_dry=self.is_dry,
            as_json=self.as_json,
        )

    def run(self, request: PlanRequest, *, waits_s: float) -> int:
        from tasuki.cli.run import run_and_show

        return run_and_show(
            request,
            accepted=self.accepted,
            lifts_hold=True,
            takes_current_code=self.is_current,
            waits_s=waits_s,
            as_json=self.as_json,
        )

    def show(self, request: PlanRequest) -> int:
        from tasuki.commands.plan import make_plan

        plan, back = make_plan(request).as_json(), request.back
        if self.as_json:
            print_json(plan if back is None else {**plan, "back": back.as_json()})
            return 0
        from tasuki.views.plan import show_plan

        for line in back.in_words() if back is not None else ():
            click.echo(line)
        show_plan(plan, python=request.python, runs=request.spec.runs)
        return 0


def _show_job(run: str, job: str, *, as_json: bool) -> int:
    from tasuki.runs.atomic import FORMAT

    if as_json:
        print_json({"format": FORMAT, "experiment": run, "job": job})
    else:
        click.echo(f"run `{run}` goes on in job {job}, which still works for others", err=True)
    return 0
