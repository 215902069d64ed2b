"""`tasuki resume`: a person has looked; lift what holds the run, and go on from its frozen spec.
From which checkpoint, if not from the last: commands/back.py."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from tasuki.clock import Clock
from tasuki.commands.freeze import log_change, snapshot_code
from tasuki.commands.queued import is_packed, runs_of
from tasuki.errors import RunError, TasukiError
from tasuki.runs.atomic import read_json, shaped, write_json
from tasuki.runs.claims import highest_claim
from tasuki.runs.control import Word, last_said, say
from tasuki.runs.find import is_of_scripts
from tasuki.runs.jobs import JobFolder, last_start, list_jobs, read_outcome
from tasuki.runs.runs import RunFolder
from tasuki.runs.standing import number_in
from tasuki.runs.view import live_holder
from tasuki.spec.load import load_cluster
from tasuki.spec.resolved import (
    ResolvedCluster,
    ResolvedExperiment,
    ResolvedSpec,
    experiment_from_plain,
)


def frozen_spec(
    run: RunFolder, environ: Mapping[str, str], *, goes_back: bool = False
) -> tuple[ResolvedSpec, ResolvedExperiment]:
    """The spec a run was begun with, under its cluster's limits of today."""
    if run.is_complete() and not goes_back:
        raise RunError(
            f"run `{run.name}` is complete: there is nothing to resume",
            hint="TASUKI_NAME=other before the same command begins another one; `--from` goes back "
            "to a checkpoint"
            if is_of_scripts(run)
            else "`--new` of `tasuki run` and `tasuki submit` begins another one; `--from` goes "
            "back to a checkpoint",
        )
    value = read_json(run.spec)
    with shaped(run.spec):
        experiment = experiment_from_plain(value["spec"])
        spec = ResolvedSpec(
            project=value["project"],
            file=value["file"],
            folder=value["folder"],
            runs=str(run.path.parent),
            cluster=_cluster_of(value, environ),
            experiments=(experiment,),
            sinks=value.get("sinks"),
            on={key: tuple(words) for key, words in (value.get("on") or {}).items()},
        )
    return spec, experiment


def frozen_deadline(run: RunFolder) -> float | None:
    """When it was to be done, as it was last submitted: going on moves no deadline."""
    return number_in(read_json(run.spec), "deadline_at")


def last_backend(run: RunFolder) -> str:
    """Where its newest job ran, or waits."""
    names = [job for job in list_jobs(run.path.parent) if run.name in runs_of(job)]
    if not names:
        return "local"
    newest = max(names, key=lambda job: job.lanes.stat().st_mtime)
    return str(read_json(newest.lanes).get("backend", "local"))


def resume_in_its_job(run: RunFolder, clock: Clock, *, takes_current_code: bool) -> str | None:
    """Where a job still works for other runs beside this one, which was stopped: let it go on
    there. The job's name; None: there is no such job."""
    said = last_said(run)
    if said is None or said.word is Word.LIFT or live_holder(run, now=clock.wall()) is not None:
        return None
    job = _job_for_others(run, clock)
    if job is None:
        return None
    if takes_current_code:
        take_current_code(run, clock)
    say(run, Word.LIFT, reason="a person said so", claim=highest_claim(run))
    return job.name


def refuse_back_in_job(run: RunFolder, clock: Clock) -> None:
    """Such a job has its own idea of what is done, and takes the run up as soon as it may."""
    job = _job_for_others(run, clock)
    if job is not None and live_holder(run, now=clock.wall()) is None:
        raise RunError(
            f"job {job.name} still works for other runs, and may take `{run.name}` up again",
            hint="go back when it is done, or cancel its other runs first",
        )


def _job_for_others(run: RunFolder, clock: Clock) -> JobFolder | None:
    jobs = [job for job in list_jobs(run.path.parent) if run.name in runs_of(job)]
    return next((job for job in jobs if is_packed(job) and _works(job, clock)), None)


def _works(job: JobFolder, clock: Clock) -> bool:
    """Does it hold a run now?"""
    start = last_start(job)
    if not start or read_outcome(job, start) is not None:
        return False
    runs = [RunFolder(job.runs / name) for name in runs_of(job)]
    holders = [live_holder(run, now=clock.wall()) for run in runs]
    return any(holder and (holder.job, holder.start) == (job.name, start) for holder in holders)


def _cluster_of(value: dict[str, Any], environ: Mapping[str, str]) -> ResolvedCluster:
    """As the run's spec file says now; as it said last where the file cannot be read any more."""
    try:
        return load_cluster(value["file"], environ=environ)
    except TasukiError:
        return msgspec.convert(value["cluster"], ResolvedCluster)


def take_current_code(run: RunFolder, clock: Clock) -> str:
    """Replace the code snapshot by the project as it is now; the new hash is an event."""
    value = read_json(run.spec)
    spec = ResolvedSpec(
        project=value["project"],
        file=value["file"],
        folder=value["folder"],
        runs=str(run.path.parent),
        cluster=ResolvedCluster(setup=(value.get("cluster") or {}).get("setup")),
        experiments=(),
    )
    if not Path(spec.folder).is_dir():
        raise RunError(f"the project's folder {spec.folder} is gone", hint="put it back")
    before = value["fingerprints"]["code"]
    after = snapshot_code(run, spec)
    value["fingerprints"]["code"] = after
    write_json(run.spec, value)
    log_change(run, clock, "code-changed", before=before, after=after)
    return after
