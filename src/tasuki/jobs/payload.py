"""What an alert says: all that a message to a person is made of, and a line that may be sent as it
is.
"""

from __future__ import annotations

import contextlib
import socket
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tasuki.clock import utc
from tasuki.errors import StoreError
from tasuki.jobs.job import JobOrder
from tasuki.runs.atomic import FORMAT, read_json, read_json_or_none
from tasuki.runs.brief import read_last_of
from tasuki.runs.claims import highest_claim
from tasuki.runs.runs import RunFolder
from tasuki.runs.standing import PlanBook, read_standing
from tasuki.runs.view import count_preemptions
from tasuki.spec.hiding import hide_in_text
from tasuki.units import format_seconds

if TYPE_CHECKING:  # most jobs never tell anybody
    from tasuki.planning.risk import Left, Risk

_PROGRESS = ("stage", "epoch", "step", "total_steps", "samples", "loss")


@dataclass(frozen=True, slots=True)
class Happened:
    outcome: str
    """As in `on`."""
    mark: str
    """Like no other of this run."""
    state: str
    reason: str
    hint: str = ""
    risk: Risk | None = None
    left: Left | None = None


def make_payload(
    run: RunFolder, happened: Happened, *, job: JobOrder, plans: PlanBook, now: float
) -> dict[str, Any]:
    from tasuki.planning.risk import Left, left_of_run, look_at_deadline

    # It goes to chats and mail: what an error says may hold the address that it was refused at.
    reason, hint = hide_in_text(happened.reason), hide_in_text(happened.hint)
    happened = replace(happened, reason=reason, hint=hint)
    spec, claim = read_json(run.spec), highest_claim(run)
    standing = read_standing(run, plans=plans, spec=spec)
    left = happened.left or (Left() if run.is_complete() else left_of_run(standing, now=now))
    risk = happened.risk
    if risk is None and standing.deadline_at is not None:
        done_at = now if run.is_complete() else None
        risk = look_at_deadline(standing.deadline_at, now=now, left=left, done_at=done_at)
    told = read_json_or_none(run.training_state) or {}
    live = read_last_of(run, claim, "rank0", "progress") if happened.state == "running" else {}
    return {
        "format": FORMAT,
        "outcome": happened.outcome,
        "text": _in_words(_who(run, spec), happened, risk),
        "run": run.name,
        "experiment": spec.get("experiment"),
        "project": spec.get("project"),
        "state": happened.state,
        "reason": happened.reason,
        "hint": happened.hint,
        **{key: live.get(key, told.get(key)) for key in _PROGRESS},
        "metrics": _metrics(run, spec),
        "attempt": claim,
        "preemptions": count_preemptions(run),
        "eta_s": left.s,
        "eta_s_p90": left.s_p90,
        "deadline": None
        if risk is None
        else {"at": utc(risk.at), "danger": risk.is_danger, "late_s": risk.late_s},
        "job": job.folder.name,
        "host": socket.gethostname(),
        "at": utc(now),
        "paths": {
            "run": str(run.path),
            "log": str(run.logs / f"{job.folder.name}.{claim}.log"),
            "err": str(run.logs / f"{job.folder.name}.{claim}.err"),
            "results": str(run.final_results) if run.is_complete() else None,
        },
    }


def _metrics(run: RunFolder, spec: dict[str, Any]) -> dict[str, Any]:
    """By stage that is trained: its evaluation, else the last line of its training."""
    found = {}
    for stage in spec["stages"]:
        folder = run.stage(stage["name"])
        with contextlib.suppress(StoreError):
            trained = read_json_or_none(folder.metrics)
            if trained is not None:
                evaluated = read_json_or_none(folder.evaluation) or {}
                found[stage["name"]] = evaluated.get("metrics") or trained.get("last") or {}
    return found


def _who(run: RunFolder, spec: dict[str, Any]) -> str:
    """A line that stands alone in a chat: runs of two projects often have the same name."""
    project = spec.get("project")
    return f"run {run.name}" if not project else f"{project}: run {run.name}"


def _in_words(who: str, happened: Happened, risk: Risk | None) -> str:
    if happened.outcome == "complete":
        return f"{who} is complete"
    if happened.outcome == "held":
        verb = "has" if happened.state == "failed" else "is"
        return f"{who} {verb} {happened.state}: {happened.reason}"
    late = risk.late_s if risk is not None else None
    by = f" by {format_seconds(late)}" if late else ""
    return f"{who} may miss its deadline{by}"
