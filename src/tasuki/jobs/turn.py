"""Is it this job's turn? Slurm starts what waits for another job's end, however that ended.

The local backend does not start such jobs at all; here the supervisor asks, and leaves.
"""

from __future__ import annotations

from collections.abc import Mapping

from tasuki.clock import Clock
from tasuki.jobs.job import JobOrder
from tasuki.jobs.place import Place
from tasuki.runs.atomic import read_json_or_none
from tasuki.runs.claims import highest_claim
from tasuki.runs.control import Word, is_wanted, last_said, say
from tasuki.runs.decide import stays_away
from tasuki.runs.jobs import JobFolder, last_start, read_outcome


def is_unwanted(
    job: JobOrder, place: Place, *, clock: Clock, environment: Mapping[str, str]
) -> bool:
    """Its runs are cancelled, held or failed; or a job before it, or its own last start, ended so
    that none may follow."""
    before = [JobFolder(job.folder.path.parent / name) for name in job.after]
    if any(_was_cancelled(folder, clock, environment) for folder in before):
        remember_cancel(job)
    stopped = [folder for folder in before if _stops(folder)]
    own = read_json_or_none(job.folder.origin(last_start(job.folder))) or {}
    if own.get("number") == place.number and _stops(job.folder):
        stopped.append(job.folder)  # at the cap of `requeue: 5`; Slurm requeued it all the same
    runs = {item.run for lane in job.lanes for item in lane.items}
    return stays_away(
        [said.word if (said := last_said(run)) else None for run in runs],
        is_first=not job.after,
        is_stopped=bool(stopped),
    )


def remember_cancel(job: JobOrder) -> None:
    """`scancel` is a person's word: neither this job nor a later one of the plan goes on."""
    reason = "its job was cancelled with scancel"
    for run in {item.run for lane in job.lanes for item in lane.items}:
        if is_wanted(run):
            say(run, Word.CANCEL, reason=reason, claim=highest_claim(run))


def _stops(folder: JobFolder) -> bool:
    told = read_outcome(folder, last_start(folder)) or {}
    return any(lane.get("stops_successors") for lane in told.get("lanes", ()))


def _was_cancelled(folder: JobFolder, clock: Clock, environment: Mapping[str, str]) -> bool:
    """While it waited, or before its supervisor could hear it: only Slurm knows."""
    told = read_outcome(folder, last_start(folder)) or {}
    number = (read_json_or_none(folder.submitted) or {}).get("number")
    if told.get("verdict") == "end" or number is None:
        return False
    from tasuki.slurm.client import Slurm, SlurmError

    try:
        shown = Slurm(environment=environment, clock=clock, tries=2).show(str(number))
    except SlurmError:
        return False
    return shown is not None and shown.state.startswith("CANCELLED")
