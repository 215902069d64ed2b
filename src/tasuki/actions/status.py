"""`tasuki status`: where every run stands, from its folder alone. No torch, no numpy, no YAML."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tasuki.actions.queued import Known, RunsJob, is_gone
from tasuki.actions.starts import what_keeps
from tasuki.clock import utc
from tasuki.errors import StoreError
from tasuki.store.atomic import FORMAT, read_json, read_json_or_none, shaped
from tasuki.store.attempts import live_runner, read_attempt_end, read_holder
from tasuki.store.claims import highest_claim, list_claims
from tasuki.store.control import Said, Word, last_said
from tasuki.store.jobs import JobFolder, last_start, read_outcome
from tasuki.store.runs import RunFolder
from tasuki.telemetry.cost import add_up_spent, price_of
from tasuki.telemetry.events import read_events, read_recent_events
from tasuki.telemetry.ledger import Ledger, make_ledger
from tasuki.telemetry.view import count_preemptions, live_holder
from tasuki.units import format_seconds

_CAUSES = {"limit": "at its time limit", "lost": "saved when a part of its job died"}
_STATE_OF = {Word.CANCEL: "cancelled", Word.HOLD: "held", Word.FAIL: "failed"}


def read_status(
    runs: Iterable[RunFolder], *, now: float, known: Known | None = None
) -> dict[str, Any]:
    """`known`: what Slurm says of their jobs. One of several that cannot be read hides no other."""
    chosen = list(runs)
    describe = describe_run if len(chosen) == 1 else _describe_if_readable
    status = {"format": FORMAT, "runs": [describe(run, now=now, known=known) for run in chosen]}
    if known is not None and (known.at is not None or known.problem):
        status["slurm"] = {"at": utc(known.at) if known.at else None, "problem": known.problem}
    return status


def describe_run(run: RunFolder, *, now: float, known: Known | None = None) -> dict[str, Any]:
    """One run as scripts see it; what is unknown is null."""
    with shaped(run.path):
        return _describe_run(run, now, known)


def _describe_if_readable(run: RunFolder, *, now: float, known: Known | None) -> dict[str, Any]:
    try:
        return describe_run(run, now=now, known=known)
    except StoreError as error:
        return {
            "experiment": run.name,
            "state": None,
            "reason": f"cannot be read: {error.message}",
            "hint": error.hint,
            **dict.fromkeys((*_PROGRESS, "eta_s", "eta_s_p90", "goodput")),
            **add_up_spent([], now=None, price=None).as_json(),
            **dict.fromkeys(("last_checkpoint_step", "memory", "updated_at")),
            **dict.fromkeys(("attempts", "preemptions"), 0),
            **{key: [] for key in ("stages", "jobs", "queue")},
        }


def _describe_run(run: RunFolder, now: float, known: Known | None) -> dict[str, Any]:
    spec = read_json(run.spec)
    claim = highest_claim(run)
    state, reason = state_of(run, now=now)
    if known is not None:
        state, reason = in_queue(run, state, reason, known)
    if state == "running":
        reason = _starting(read_recent_events(run, claim), now)
    said = last_said(run)
    told = read_json_or_none(run.training_state) or {}
    progress = last_progress(run, claim) if state == "running" else {}
    merged = {key: progress.get(key, told.get(key)) for key in _PROGRESS}
    stages = [_describe_stage(run, stage) for stage in spec["stages"]]
    events, until = read_events(run), now if state == "running" else None
    ledger = make_ledger(events, now=until)
    spent = add_up_spent(events, now=until, price=price_of(spec))
    return {
        "experiment": run.name,
        "state": state,
        "reason": reason,
        "hint": _hint(run, state, said),
        **merged,
        "attempts": len(list_claims(run)),
        "preemptions": count_preemptions(run),
        **_eta(progress, _last_of(read_recent_events(run, claim), "forecast") if progress else {}),
        "goodput": round(ledger.goodput, 4) if ledger.goodput is not None else None,
        **spent.as_json(),
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


_MEMORY = ("stage", "on", "device", "host")
_PROGRESS = ("stage", "epoch", "step", "total_steps", "samples", "loss")


def state_of(run: RunFolder, *, now: float) -> tuple[str, str]:
    """(state, why)."""
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
    if end["ending"] == "handed-over":
        cause = _CAUSES.get(str(end["cause"]), str(end["cause"]))
        return "handed-over", f"{cause}; {_on(run)}"
    if end["ending"] == "done":
        left = "what was asked for is done; `tasuki run` does the stages that are left"
        return "waiting", what_keeps(run) or left
    return "waiting", str(end.get("message", ""))


def _hint(run: RunFolder, state: str, said: Said | None) -> str:
    if said is None or state not in _STATE_OF.values():
        return ""
    again = "--code current` takes a mended recipe" if state == "failed" else "` goes on"
    return said.hint or f"`tasuki resume {run.name}{' ' if state == 'failed' else ''}{again}"


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


def _last_line(log: Path) -> str:
    try:
        lines = log.read_text(errors="replace").strip().splitlines()
    except OSError:
        return ""
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


def last_progress(run: RunFolder, claim: int) -> dict[str, Any]:
    """The newest sign of life of an attempt."""
    return _last_of(read_recent_events(run, claim), "progress")


def _memory(run: RunFolder, claim: int) -> dict[str, Any] | None:
    """What the newest attempt measured in its first steps."""
    found = _last_of(read_recent_events(run, claim), "memory")
    return {key: found.get(key) for key in _MEMORY} if found else None


def _last_of(events: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    return next((event for event in reversed(events) if event["kind"] == kind), {})


def ledger_of(run: RunFolder, *, now: float | None = None) -> Ledger:
    return make_ledger(read_events(run), now=now)


def _eta(progress: dict[str, Any], forecast: dict[str, Any]) -> dict[str, float | None]:
    """Of the stage that runs: by its epochs, as it forecast itself; before its first epoch is over
    from the median of its steps, and then nobody knows what nine of ten would keep to."""
    step_s, total, step = (progress.get(key) for key in ("step_s", "total_steps", "step"))
    if not step_s or total is None or step is None:
        return {"eta_s": None, "eta_s_p90": None}
    left = int(total) - int(step)
    ahead = int(forecast.get("total_steps", 0)) - int(forecast.get("step", 0))
    if forecast.get("stage") != progress.get("stage") or ahead <= 0:
        return {"eta_s": round(float(step_s) * left, 1), "eta_s_p90": None}
    share = left / ahead
    return {
        "eta_s": round(float(forecast["left_s"]) * share, 1),
        "eta_s_p90": round(float(forecast["left_s_p90"]) * share, 1),
    }


def _describe_stage(run: RunFolder, stage: dict[str, Any]) -> dict[str, Any]:
    folder = run.stage(stage["name"])
    trained = read_json_or_none(folder.metrics)
    evaluated = read_json_or_none(folder.evaluation)
    return {
        "name": stage["name"],
        "is_trained": trained is not None,
        "is_evaluated": evaluated is not None if stage["evaluates"] else None,
        "command": stage.get("command"),
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
    """What a person who watches should read: warnings, and how the attempt before failed."""
    told = [f"attempt {claim}: {e.get('text')}" for e in events if e["kind"] == "warning"]
    before = read_attempt_end(run, claim - 1) if claim > 1 else None
    if before is not None and before.get("ending") == "failed" and before.get("message"):
        told.insert(0, f"attempt {claim - 1} failed: {before['message']}")
    return told


_BEGINS = {"worker-started": "importing", "restored": "the first steps"}
"""What follows these, until something else is told."""


_COMMAND = "runs its command"
"""What there is to tell of it: nobody counts its steps."""


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


def _starting(events: list[dict[str, Any]], now: float) -> str:
    found = doing_in(events)
    if found is None or _last_of(events, "worker-started").get("phase") != "train":
        return ""
    if found[0] == _COMMAND:
        return f"{_COMMAND}, for {format_seconds(max(0, round(now - found[1])))}"
    return f"starting: {found[0]}, for {format_seconds(max(0, round(now - found[1])))}"


def brief_run(run: RunFolder, *, now: float) -> dict[str, Any]:
    """What a live view shows, several times a second: no ledger, no history."""
    claim = highest_claim(run)
    state, reason = state_of(run, now=now)
    events = read_recent_events(run, claim) if claim else []
    progress = _last_of(events, "progress")
    phase = _last_of(events, "worker-started")
    doing = doing_in(events) if state == "running" else None
    stages = [stage["name"] for stage in read_json(run.spec)["stages"]]
    return {
        "experiment": run.name,
        "state": state,
        "reason": reason,
        "attempts": claim,
        "stages": stages,
        "done": [name for name in stages if run.stage(name).metrics.exists()],
        "eta_s": _eta(progress, _last_of(events, "forecast"))["eta_s"],
        "phase": phase.get("phase"),
        "phase_stage": phase.get("stage"),
        "doing": doing[0] if doing else None,
        "is_command": doing is not None and doing[0] == _COMMAND,
        "doing_s": max(0, round(now - doing[1])) if doing else None,
        "notable": _notable(run, claim, events),
        **{key: progress.get(key) for key in _PROGRESS},
    }
