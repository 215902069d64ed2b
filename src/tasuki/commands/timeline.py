"""Plan against reality: when each piece of work was to be done, and when it was.

Planned is what the newest plan of each run says (runs/.plans), from the moment when it was given
out; actual is what the events of its attempts tell.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tasuki.commands.status import state_of
from tasuki.errors import StoreError
from tasuki.runs.atomic import FORMAT, read_json_or_none
from tasuki.runs.attempts import read_holder
from tasuki.runs.follow import EventFollower
from tasuki.runs.jobs import job_folder, plan_path
from tasuki.runs.runs import RunFolder
from tasuki.runs.series import as_number


def read_timeline(
    runs: Path,
    chosen: Sequence[RunFolder],
    *,
    now: float,
    followers: Mapping[str, EventFollower] | None = None,
) -> dict[str, Any]:
    """Of some runs in one folder; what cannot be read is left out. Who looks again and again has
    `followers` of their events, by run."""
    plans: dict[str, float] = {}
    """When each was first given out."""
    wanted: dict[str, dict[str, str]] = {}
    """Plan → experiment → run."""
    actual: list[dict[str, Any]] = []
    for run in chosen:
        follower = (followers or {}).get(run.name) or EventFollower(run)
        follower.look()
        actual += _actual(run, follower.events, now=now)
        newest = _newest_plan(follower.events)
        if newest is not None:
            plan, at = newest
            plans[plan] = min(at, plans.get(plan, at))
            wanted.setdefault(plan, {})[_experiment(run)] = run.name
    planned_from = min(plans.values(), default=None)
    planned: list[dict[str, Any]] = []
    deadlines: list[float] = []
    for plan, at in plans.items():
        value = _read(plan_path(runs, plan))
        planned += _planned(value, wanted[plan], shift_s=at - (planned_from or at))
        deadline_s = as_number(value.get("deadline_s"))
        deadlines += [] if deadline_s is None else [at + deadline_s]
    return {
        "format": FORMAT,
        "planned": planned,
        "planned_from": planned_from,
        "actual": sorted(actual, key=lambda one: one["began_at"]),
        "deadline_at": min(deadlines, default=None),
    }


# -- what was planned -------------------------------------------------------------------------


def _newest_plan(events: Sequence[Mapping[str, Any]]) -> tuple[str, float] | None:
    """The plan that a run was last given out with, and when."""
    found: dict[str, float] = {}
    for event in events:
        if event["kind"] == "submitted" and isinstance(event.get("job"), str):
            plan = event["job"].rpartition("-")[0]
            found.setdefault(plan, event["t"])
    if not found:
        return None
    plan = max(found, key=found.__getitem__)
    return plan, found[plan]


def _experiment(run: RunFolder) -> str:
    return str(_read(run.spec).get("experiment", run.name))


def _read(path: Path) -> dict[str, Any]:
    try:
        return read_json_or_none(path) or {}
    except StoreError:
        return {}


def _planned(
    plan: Mapping[str, Any], runs: Mapping[str, str], *, shift_s: float
) -> Iterator[dict[str, Any]]:
    """A piece begins where the plan says, else when its lane is free, else nobody knows when."""
    for job in _dicts(plan.get("jobs")):
        for number, lane in enumerate(_dicts(job.get("lanes"))):
            free = as_number(job.get("start_s"))
            for piece in _dicts(lane.get("stages")):
                start = as_number(piece.get("start_s"))
                begins = start if start is not None else free
                long = as_number(piece.get("expected_s"))
                free = None if begins is None or long is None else begins + long
                if piece.get("experiment") not in runs:
                    continue
                yield {
                    "experiment": runs[piece["experiment"]],
                    "stage": piece.get("stage"),
                    "kind": piece.get("kind"),
                    "job": job.get("name"),
                    "lane": number,
                    "gpus": lane.get("gpus") or [],
                    "begins_s": None if begins is None else round(begins + shift_s, 3),
                    "ends_s": None if free is None else round(free + shift_s, 3),
                }


def _dicts(value: object) -> list[dict[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


# -- what was done ----------------------------------------------------------------------------


def _actual(
    run: RunFolder, events: Sequence[Mapping[str, Any]], *, now: float
) -> Iterator[dict[str, Any]]:
    try:
        is_live = state_of(run, now=now)[0] == "running"
    except StoreError:
        is_live = False
    by_claim: dict[int, list[Mapping[str, Any]]] = {}
    for event in events:
        by_claim.setdefault(int(event["claim"]), []).append(event)
    newest = max(by_claim, default=0)
    for claim, own in sorted(by_claim.items()):
        job, lane = _place(run, claim)
        for piece in _pieces(own):
            is_running = piece.pop("is_open") and is_live and claim == newest
            ended_at = None if is_running else max(piece["began_at"], piece["ended_at"])
            yield {
                "experiment": run.name,
                **piece,
                "job": job,
                "lane": lane,
                "attempt": claim,
                "ended_at": ended_at,
                "is_running": is_running,
            }


def _pieces(events: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """The phases of one attempt. One that nobody saw the end of ends with the last word."""
    pieces: list[dict[str, Any]] = []
    for event in events:
        if event["kind"] == "worker-started":
            pieces.append(
                {
                    "stage": event.get("stage"),
                    "kind": event.get("phase"),
                    "began_at": event["t"],
                    "ended_at": event["t"],
                    "ending": None,
                    "cause": None,
                    "is_open": True,
                }
            )
        elif pieces and pieces[-1]["is_open"] and event["kind"] != "submitted":
            pieces[-1]["ended_at"] = event["t"]
            if event["kind"] in ("worker-ended", "attempt-ended"):
                told = {key: event.get(key) for key in ("ending", "cause")}
                pieces[-1] |= {**told, "is_open": False}
    yield from pieces


def _place(run: RunFolder, claim: int) -> tuple[str | None, int | None]:
    """The job of an attempt, and its lane: of a packed job the one that its item was planned in."""
    try:
        holder = read_holder(run, claim)
    except StoreError:
        holder = None
    if holder is None:
        return None, None
    job = job_folder(run.path.parent, holder.job)
    lanes = _dicts(_read(job.lanes).get("lanes"))
    if len(lanes) == 1:
        return holder.job, 0
    ids = {
        item.get("id"): number
        for number, lane in enumerate(lanes)
        for item in _dicts(lane.get("items"))
    }
    for number, lane in [*ids.items(), *((n, n) for n in range(len(lanes)))]:
        if isinstance(number, int):
            told = _read(job.claim(holder.start, number))
            if (told.get("run"), told.get("claim")) == (run.name, claim):
                return holder.job, lane
    return holder.job, None
