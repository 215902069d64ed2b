"""`tasuki status`: where every run stands, from its folder alone. No torch, no numpy, no YAML.

Quick where there are many: finished runs have their accounts, of the others no more of their events
is read than brief.py does.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Any

from tasuki.clock import utc
from tasuki.commands.queued import Known, RunsJob, is_gone
from tasuki.errors import StoreError
from tasuki.planning.risk import Left, left_of_run, look_at_deadline
from tasuki.runs.accounts import read_accounts
from tasuki.runs.atomic import FORMAT, open_plain, read_json, read_json_or_none, shaped, translated
from tasuki.runs.attempts import live_runner, read_attempt_end, read_holder
from tasuki.runs.brief import read_last_of
from tasuki.runs.claims import highest_claim, list_claims
from tasuki.runs.control import Said, Word, last_said
from tasuki.runs.cost import add_up_spent
from tasuki.runs.events import read_events, read_recent_events
from tasuki.runs.find import is_remains, stage_names
from tasuki.runs.jobs import JobFolder, last_start, read_outcome
from tasuki.runs.ledger import Ledger, make_ledger
from tasuki.runs.remains import what_is_gone
from tasuki.runs.runs import RunFolder
from tasuki.runs.standing import PlanBook, Standing, number_in, read_standing
from tasuki.runs.starts import what_keeps
from tasuki.runs.view import live_holder, read_attempts_made
from tasuki.spec.hiding import hide
from tasuki.units import format_seconds

_CAUSES = {
    "limit": "at its time limit",
    "lost": "saved when a part of its job died",
}
_STATE_OF = {Word.CANCEL: "cancelled", Word.HOLD: "held", Word.FAIL: "failed"}


def read_status(
    runs: Iterable[RunFolder], *, now: float, known: Known | None = None
) -> dict[str, Any]:
    """`known`: what Slurm says of their jobs. One of several that cannot be read hides no other."""
    chosen = list(runs)
    describe = describe_run if len(chosen) == 1 else _describe_if_readable
    books = {folder: PlanBook(folder) for folder in {run.path.parent for run in chosen}}
    described = [
        describe(run, now=now, known=known, plans=books[run.path.parent]) for run in chosen
    ]
    status: dict[str, Any] = {"format": FORMAT, "runs": described}
    if known is not None and (known.at is not None or known.problem):
        status["slurm"] = {"at": utc(known.at) if known.at else None, "problem": known.problem}
    return status


def describe_run(
    run: RunFolder, *, now: float, known: Known | None = None, plans: PlanBook | None = None
) -> dict[str, Any]:
    """One run as scripts see it; what is unknown is null."""
    gone = what_is_gone(run)
    if is_remains(run):
        return {**_unknown_run(run), "reason": gone.words, "hint": gone.hint}
    with translated(run.path), shaped(run.path):
        told = _describe_run(run, now, known, plans or PlanBook(run.path.parent))
    reason, hint = _both(told["reason"], gone.words), _both(told["hint"], gone.hint)
    return {**told, "reason": reason, "hint": hint}


def _both(told: str, more: str) -> str:
    return f"{told}; {more}" if told and more else told or more


def _describe_if_readable(
    run: RunFolder, *, now: float, known: Known | None, plans: PlanBook
) -> dict[str, Any]:
    try:
        return describe_run(run, now=now, known=known, plans=plans)
    except StoreError as error:
        reason = f"cannot be read: {error.message}"
        return {**_unknown_run(run), "reason": reason, "hint": error.hint}


def _unknown_run(run: RunFolder) -> dict[str, Any]:
    return {
        "experiment": run.name,
        "state": None,
        "reason": "",
        "hint": "",
        **dict.fromkeys((*_PROGRESS, *_ETA, "deadline", "goodput")),
        **add_up_spent([], now=None, price=None).as_json(),
        **dict.fromkeys(("last_checkpoint_step", "memory", "updated_at")),
        **dict.fromkeys(("attempt", "attempts", "preemptions"), 0),
        **{key: [] for key in ("stages", "jobs", "queue")},
    }


def _describe_run(
    run: RunFolder, now: float, known: Known | None, plans: PlanBook
) -> dict[str, Any]:
    spec = read_json(run.spec)
    claim = highest_claim(run)
    state, reason = state_of(run, now=now)
    if known is not None:
        state, reason = in_queue(run, state, reason, known)
    recent = read_recent_events(run, claim) if state == "running" else []
    reason = _starting(recent, now) if state == "running" else reason
    said = last_said(run)
    told = read_json_or_none(run.training_state) or {}
    progress = _last_of(recent, "progress")
    stages = [_describe_stage(run, stage) for stage in spec["stages"]]
    made = read_attempts_made(run)
    return {
        "experiment": run.name,
        "state": state,
        "reason": reason,
        "hint": _hint(run, state, said),
        **{key: progress.get(key, told.get(key)) for key in _PROGRESS},
        "attempt": made.newest,
        "attempts": made.count,
        "preemptions": made.preemptions,
        **_outlook(run, spec, state, now=now, plans=plans),
        **read_accounts(run, spec, now=now if state == "running" else None),
        "last_checkpoint_step": told.get("step"),
        "memory": _memory(run, claim),
        "stages": stages,
        "jobs": _jobs_of(run),
        "queue": [
            {"job": job.folder.name, "number": job.number, "state": job.queued.state}
            for job in (known.of(run) if known is not None else ())
        ],
        "updated_at": utc(progress["t"]) if "t" in progress else told.get("updated_at"),
    }


def _outlook(
    run: RunFolder, spec: dict[str, Any], state: str, *, now: float, plans: PlanBook
) -> dict[str, Any]:
    """When it will be done, and whether that is in time."""
    at = number_in(spec, "deadline_at")
    if state == "complete":
        done_at = _completed_at(run) if at is not None else None
        return {**dict.fromkeys(_ETA), "deadline": _deadline(at, now, Left(), done_at)}
    left = left_of_run(read_standing(run, plans=plans, spec=spec), now=now)
    told = left if state in _GOES_ON else Left()
    return {
        "eta_s": _rounded(told.s),
        "eta_s_p90": _rounded(told.s_p90),
        "stage_eta_s": _rounded(told.stage_s),
        "deadline": _deadline(at, now, left),
    }


def _deadline(
    at: float | None, now: float, left: Left, done_at: float | None = None
) -> dict[str, Any] | None:
    if at is None:
        return None
    risk = look_at_deadline(at, now=now, left=left, done_at=done_at)
    return {"at": utc(at), "danger": risk.is_danger, "late_s": _rounded(risk.late_s)}


def _completed_at(run: RunFolder) -> float | None:
    told = (read_json_or_none(run.marker) or {}).get("completed_at")
    try:
        return datetime.fromisoformat(str(told)).timestamp()
    except ValueError:
        return run.marker.stat().st_mtime


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 1)


_MEMORY = ("stage", "on", "device", "host")
_PROGRESS = ("stage", "epoch", "step", "total_steps", "samples", "loss")
_ETA = ("eta_s", "eta_s_p90", "stage_eta_s")
_GOES_ON = ("running", "waiting", "handed-over")
"""Only of these is it known that somebody works on it, or soon will."""


def state_of(run: RunFolder, *, now: float) -> tuple[str, str]:
    """(state, why)."""
    with translated(run.path), shaped(run.path):
        return _state_of(run, now)


def _state_of(run: RunFolder, now: float) -> tuple[str, str]:
    if run.is_complete():
        return "complete", ""
    if live_holder(run, now=now) is not None:
        return "running", ""
    said = last_said(run)
    if said is not None and said.word in _STATE_OF:
        return _STATE_OF[said.word], said.reason
    claim = highest_claim(run)
    if claim == 0:
        return "waiting", what_keeps(run) or "not started yet"
    if live_runner(run) is not None:
        return "waiting", what_keeps(run) or "between two attempts: `tasuki run` is about to go on"
    end = read_attempt_end(run, claim)
    if end is None:
        return "handed-over", f"the last attempt died without a word; {_on(run)}"
    if end.get("went_back"):
        return "handed-over", f"a person went back to {end['went_back']}; {_on(run)}"
    if end["ending"] == "handed-over":
        cause = _CAUSES.get(str(end["cause"]), str(end["cause"]))
        return "handed-over", f"{cause}; {_on(run)}"
    if is_alone(run, claim) and end["ending"] != "done":
        if str(end.get("cause")) == "interrupted":
            return "handed-over", f"interrupted, without a last save; {_on(run)}"
        return "failed", str(end.get("message", ""))
    if end["ending"] == "done":
        left = "what was asked for is done; `tasuki run` does the stages that are left"
        return "waiting", what_keeps(run) or left
    return "waiting", str(end.get("message", ""))


def is_alone(run: RunFolder, claim: int) -> bool:
    """A script by itself (`tasuki.open_run`) made this attempt: no job did, and nobody goes on."""
    holder = read_holder(run, claim)
    return holder is not None and not holder.job


def hint_of_crashed(run: RunFolder) -> str:
    """Of a script by itself, which nobody starts again; empty: it is none."""
    claim = highest_claim(run)
    end = read_attempt_end(run, claim) if claim and is_alone(run, claim) else None
    if end is None:
        return ""
    return str(end.get("hint") or "") or (
        "mend it, then start the script again: it goes on from the last checkpoint"
    )


def _hint(run: RunFolder, state: str, said: Said | None) -> str:
    if state == "failed" and (said is None or said.word is not Word.FAIL):
        return hint_of_crashed(run)
    if said is None or state not in _STATE_OF.values():
        return ""
    if state == "held":
        return how_to_lift(run, said)
    again = "--code current` takes a mended recipe" if state == "failed" else "` goes on"
    return said.hint or f"`tasuki resume {run.name}{' ' if state == 'failed' else ''}{again}"


def how_to_lift(run: RunFolder, said: Said) -> str:
    """What to look at, as whoever held it said, and the one verb that goes on."""
    lifts = f"`tasuki resume {run.name}`"
    if "tasuki resume" in said.hint:
        return said.hint
    return f"{said.hint}; when it is mended, {lifts} goes on" if said.hint else f"{lifts} goes on"


def in_queue(run: RunFolder, state: str, reason: str, known: Known) -> tuple[str, str]:
    """What the run's folder says, completed by what Slurm says of its jobs."""
    jobs = known.of(run)
    if state == "running" and jobs and not any(job.is_running for job in jobs):
        holder = read_holder(run, highest_claim(run))
        if holder is not None and holder.is_alive() is None:  # on a node that is gone
            return "waiting", _queue_words(jobs[0])
    if state not in ("waiting", "handed-over"):
        return state, reason
    if jobs:
        job = next((job for job in jobs if job.is_running), jobs[0])
        return "waiting", _queue_words(job)
    if run.name in known.last and is_gone(known, known.last[run.name][0]):
        return state, _gone_words(*known.last[run.name]) or reason
    return state, reason


def _gone_words(job: JobFolder, number: str) -> str:
    """Why nobody will go on by himself; empty: nothing is odd."""
    told = read_outcome(job, last_start(job))
    if told is None:
        log = job.slurm_log(number)
        last = _last_line(log)
        where = f"see {log}" if log.exists() else "it left no log: do nodes see this folder?"
        words = f": {last}" if last else ""
        return f"job {number} is gone from the queue without a word{words} ({where})"
    if told.get("verdict") == "requeue":
        return f"job {number} left the queue while it waited to go on; `tasuki submit` goes on"
    return ""


_TAIL_BYTES = 65_536


def _last_line(log: Path) -> str:
    """Of a log that may be long, or be none; empty: nobody can tell."""
    try:
        with open_plain(log) as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
            text = file.read(_TAIL_BYTES).decode(errors="replace")
    except (OSError, StoreError):
        return ""
    lines = text.strip().splitlines()
    return lines[-1][:200] if lines else ""


def _queue_words(job: RunsJob) -> str:
    queued = job.queued
    if job.is_running:
        where = f"in partition {queued.partition}"
        return f"job {job.number} begins {where}, or is about to come back there"
    why = f" ({queued.reason})" if queued.reason else ""
    begins = f"; may start at {utc(queued.starts)}" if queued.starts else ""
    return f"job {job.number} waits in partition {queued.partition}{why}{begins}"


def _on(run: RunFolder) -> str:
    return f"the same command goes on, or `tasuki resume {run.name}`"


def _memory(run: RunFolder, claim: int) -> dict[str, Any] | None:
    """What the newest attempt measured in its first steps."""
    found = read_last_of(run, claim, "memory", "memory") if claim else {}
    return {key: found.get(key) for key in _MEMORY} if found else None


def _last_of(events: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    return next((event for event in reversed(events) if event["kind"] == kind), {})


def ledger_of(run: RunFolder, *, now: float | None = None) -> Ledger:
    return make_ledger(read_events(run), now=now)


def _describe_stage(run: RunFolder, stage: dict[str, Any]) -> dict[str, Any]:
    folder = run.stage(stage["name"])
    trained = read_json_or_none(folder.metrics)
    evaluated = read_json_or_none(folder.evaluation)
    return {
        "name": stage["name"],
        "is_trained": trained is not None,
        "is_evaluated": evaluated is not None if stage["evaluates"] else None,
        "command": hide(stage["command"]) if stage.get("command") is not None else None,
        "wall_s": trained.get("wall_s") if trained else None,
        "steps": trained["steps"] if trained else None,
        "loss": (trained["last"] or {}).get("loss") if trained else None,
        "metrics": evaluated["metrics"] if evaluated else None,
        "scaling": trained.get("scaling") if trained else None,
    }


def _jobs_of(run: RunFolder) -> list[str]:
    holders = [read_holder(run, claim) for claim in list_claims(run)]
    return list(dict.fromkeys(h.job for h in holders if h is not None and h.job))


def _notable(run: RunFolder, claim: int, events: list[dict[str, Any]]) -> list[str]:
    """What a person who watches should read: warnings, and how the attempt before failed. What was
    there when a person looked and said `resume` is no news."""
    said = last_said(run)
    lifted = said.claim if said is not None and said.word is Word.LIFT else 0
    if claim <= lifted:
        return []
    told = [f"attempt {claim}: {e.get('text')}" for e in events if e["kind"] == "warning"]
    before = read_attempt_end(run, claim - 1) if claim - 1 > lifted else None
    if before is not None and before.get("ending") == "failed" and before.get("message"):
        told.insert(0, f"attempt {claim - 1} failed: {before['message']}")
    return told


_BEGINS = {"worker-started": "importing", "restored": "the first steps"}
"""What follows these, until something else is told."""


_COMMAND = "runs its command"
"""What there is to tell of it: nobody counts its steps."""
_EVALUATES = "evaluating "


def doing_in(events: list[dict[str, Any]]) -> tuple[str, float] | None:
    """(what a start is at, since when); None: no start is under way."""
    for event in reversed(events):
        kind = event["kind"]
        if kind == "worker-started" and event.get("is_command"):
            return _COMMAND, float(event["t"])
        if kind in _BEGINS or kind == "doing":
            return str(event.get("what") or _BEGINS.get(kind, "")), float(event["t"])
        if kind in ("progress", "worker-ended"):
            return None
    return None


def at_work(events: list[dict[str, Any]]) -> tuple[str, float] | None:
    """As `doing_in`, and of an evaluation that it is one: it has a start, too, but no steps."""
    newest = events[-1]["claim"] if events else 0
    for event in reversed(events):
        if event["claim"] != newest or event["kind"] == "worker-ended":
            return None
        if event["kind"] == "worker-started":
            is_evaluation = event.get("phase") == "evaluate"
            own = f"{_EVALUATES}{event.get('stage')}", float(event["t"])
            return own if is_evaluation else doing_in(events)
    return None


def _starting(events: list[dict[str, Any]], now: float) -> str:
    found = at_work(events)
    if found is None:
        return ""
    label = "" if found[0].startswith((_COMMAND, _EVALUATES)) else "starting: "
    return f"{label}{found[0]}, for {format_seconds(max(0, round(now - found[1])))}"


def _stage_left(progress: dict[str, Any], forecast: dict[str, Any]) -> float | None:
    """Of the stage alone: a live line shows one after another."""
    return _rounded(left_of_run(Standing(progress=progress, forecast=forecast), now=0.0).stage_s)


def brief_run(run: RunFolder, *, now: float) -> dict[str, Any]:
    """What a live view shows, several times a second: no ledger, no history."""
    with shaped(run.path):
        return _brief_run(run, now)


def _brief_run(run: RunFolder, now: float) -> dict[str, Any]:
    claim = highest_claim(run)
    state, reason = state_of(run, now=now)
    events = read_recent_events(run, claim) if claim else []
    progress = _last_of(events, "progress")
    phase = _last_of(events, "worker-started")
    doing = doing_in(events) if state == "running" else None
    stages = stage_names(run)
    return {
        "experiment": run.name,
        "state": state,
        "reason": reason,
        "attempt": claim,
        "stages": stages,
        "done": [name for name in stages if run.stage(name).metrics.exists()],
        "eta_s": _stage_left(progress, _last_of(events, "forecast")),
        "phase": phase.get("phase"),
        "phase_stage": phase.get("stage"),
        "doing": doing[0] if doing else None,
        "is_command": doing is not None and doing[0] == _COMMAND,
        "doing_s": max(0, round(now - doing[1])) if doing else None,
        "notable": _notable(run, claim, events),
        **{key: progress.get(key) for key in _PROGRESS},
    }
