"""`tasuki report`: everything there is to tell of some runs, as values.

Reads only; a run of which a part cannot be read tells the rest, and what is wrong. Nothing of the
environment goes into it but versions and devices (commands/told_spec.py), and of what errors say no
secret (spec/hiding.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tasuki.clock import utc
from tasuki.commands.curves import read_curves
from tasuki.commands.status import describe_run
from tasuki.commands.timeline import read_timeline
from tasuki.commands.told_spec import read_environment, read_told_spec
from tasuki.commands.why import tell_why
from tasuki.errors import StoreError
from tasuki.runs.atomic import FORMAT, read_json_or_none
from tasuki.runs.attempts import read_holder
from tasuki.runs.claims import highest_claim
from tasuki.runs.jobs import job_folder
from tasuki.runs.runs import RunFolder
from tasuki.spec.hiding import hide_in_texts

Values = dict[str, Any]
_POINTS = 600
"""Of each curve: as many as a page is wide."""


def gather_report(
    runs: Path,
    chosen: Sequence[RunFolder],
    *,
    now: float,
    points: int = _POINTS,
    drawn: int | None = None,
) -> Values:
    """`drawn`: of how many, the first ones, curves are wanted; None: of all. For them every line of
    metrics is read."""
    return {
        "format": FORMAT,
        "made_at": utc(now),
        "now": now,
        "runs": [
            _gather(run, now=now, points=points if drawn is None or at < drawn else None)
            for at, run in enumerate(chosen)
        ],
        "timeline": read_timeline(runs, chosen, now=now),
    }


def _gather(run: RunFolder, *, now: float, points: int | None) -> Values:
    problems: list[str] = []

    def part(read: Callable[[], Values]) -> Values:
        try:
            return read()
        except StoreError as error:
            problems.append(error.message)
            return {}

    status = part(lambda: describe_run(run, now=now))
    why = part(lambda: tell_why(run, now=now))
    told = ("state", "reason", "attempts", "preemptions", "goodput", "cost")
    environment = part(lambda: read_environment(run))
    where = part(lambda: {"is_cpu": _is_on_cpu(run, environment)})
    curves = {} if points is None else part(lambda: read_curves(run, points=points))
    spec = part(lambda: read_told_spec(run))
    return {
        "experiment": run.name,
        **hide_in_texts({key: status.get(key) for key in told}),
        "gpu_hours": None if where.get("is_cpu") else status.get("gpu_hours"),
        "wall_s": why.get("ledger", {}).get("wall_s"),
        "results": [_result(run, stage, status, part) for stage in status.get("stages", ())],
        "story": hide_in_texts(why.get("attempts", [])),
        "ledger": why.get("ledger", {}),
        "curves": curves,
        "environment": environment,
        "spec": spec,
        "problems": hide_in_texts(list(dict.fromkeys([*problems, *why.get("notes", [])]))),
    }


def _is_on_cpu(run: RunFolder, environment: Values) -> bool:
    """As its first attempt found; a command tells nothing of it, but its job may."""
    if "device" in environment:
        return bool(environment["device"] == "cpu")
    holder = read_holder(run, highest_claim(run))
    if holder is None or not holder.job or "/" in holder.job:
        return False
    lanes = read_json_or_none(job_folder(run.path.parent, holder.job).lanes) or {}
    return lanes.get("device") == "cpu"


def _result(
    run: RunFolder,
    stage: Mapping[str, Any],
    status: Mapping[str, Any],
    part: Callable[[Callable[[], Values]], Values],
) -> Values:
    """What a stage came to; of the one in work steps and loss so far."""
    is_in_work = not stage["is_trained"] and stage["name"] == status["stage"]
    trained = part(lambda: read_json_or_none(run.stage(stage["name"]).metrics) or {})
    best = trained.get("best") if isinstance(trained.get("best"), dict) else None
    return {
        "stage": stage["name"],
        "state": _state_of(stage, status["state"] if is_in_work else "ahead"),
        "steps": status["step"] if is_in_work else stage["steps"],
        "epochs": trained.get("epochs"),
        "samples": trained.get("samples"),
        "loss": status["loss"] if is_in_work else stage["loss"],
        "best": best,
        "evaluation": stage["metrics"] if isinstance(stage["metrics"], dict) else {},
        "is_own": stage["is_evaluated"] is None,
        "wall_s": stage["wall_s"],
    }


def _state_of(stage: Mapping[str, Any], untrained: str | None) -> str | None:
    if not stage["is_trained"]:
        return untrained
    return "trained" if stage["steps"] is not None else "done"  # a command has no steps
