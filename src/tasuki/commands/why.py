"""`tasuki why`: why every attempt of a run ended, and where its time went.

From the run's folder and its job folders alone; nothing is asked of the scheduler, which has often
forgotten. A folder of which a part is gone tells what is left, and says so in `notes`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from tasuki.commands.status import hint_of_crashed, how_to_lift, state_of
from tasuki.errors import StoreError
from tasuki.runs.atomic import FORMAT, read_json_or_none
from tasuki.runs.attempts import read_attempt_end, read_holder
from tasuki.runs.claims import list_claims
from tasuki.runs.control import last_said
from tasuki.runs.find import stage_names
from tasuki.runs.follow import EventFollower
from tasuki.runs.jobs import job_folder
from tasuki.runs.ledger import Ledger, make_ledger, read_attempts
from tasuki.runs.lines import read_last_lines
from tasuki.runs.metrics import metric_files
from tasuki.runs.remains import what_is_gone
from tasuki.runs.runs import RunFolder
from tasuki.runs.story import AttemptStory, Holding, StageSpan, span_stages, tell_attempts

_STOPPED = ("held", "failed", "cancelled")
T = TypeVar("T")


def tell_why(run: RunFolder, *, now: float) -> dict[str, Any]:
    """One run's story; what is unknown, or goes on, is null."""
    follower = EventFollower(run)
    follower.look()
    return tell_story(run, follower, now=now)


def tell_story(run: RunFolder, follower: EventFollower, *, now: float) -> dict[str, Any]:
    """The same from events that were followed: for who asks again and again."""
    gone = what_is_gone(run)
    notes = [gone.words] if gone.words else []
    events = follower.events
    names = _or_note(lambda: stage_names(run), notes) if run.spec.exists() else None
    state, reason = _or_note(lambda: state_of(run, now=now), notes) or (None, "")
    stages = span_stages(names or _told_stages(events), events)
    holdings = read_holdings(run, notes, is_running=state == "running")
    attempts = tell_attempts(events, holdings, stages)
    ledger = _ledger(events, state, now)
    if follower.newer:
        notes.append(
            f"{follower.newer} event{'s' if follower.newer > 1 else ''} of a newer tasuki "
            "cannot be read: use the one that wrote them"
        )
    if not events and holdings:
        notes.append("the run's events are gone: what is told comes from its claims alone")
    return {
        "format": FORMAT,
        "experiment": run.name,
        "state": state,
        "reason": reason,
        "hint": _or_note(lambda: _hint(run, state), notes) or gone.hint,
        "attempts": [attempt.as_json() for attempt in attempts],
        "ledger": ledger_json(ledger),
        "stages": [stage.as_json() for stage in stages],
        "notes": notes,
    }


def ledger_json(ledger: Ledger) -> dict[str, Any]:
    """In milliseconds; `other` takes what rounding leaves, so that they add up still."""
    wall_s = round(ledger.wall_s, 3)
    parts = {part: round(seconds, 3) for part, seconds in ledger.parts.items()}
    parts["other"] = round(wall_s - sum(s for part, s in parts.items() if part != "other"), 3)
    goodput = None if ledger.goodput is None else round(ledger.goodput, 4)
    return {"wall_s": wall_s, "goodput": goodput, "parts": parts}


def read_stories(
    run: RunFolder, events: Sequence[dict[str, Any]]
) -> tuple[list[StageSpan], list[AttemptStory]]:
    """Stages and attempts alone, for who draws them."""
    notes: list[str] = []
    names = _or_note(lambda: stage_names(run), notes)
    stages = span_stages(names or _told_stages(events), events)
    claims = _or_note(lambda: list_claims(run), notes) or []
    holder = _or_note(lambda: read_holder(run, max(claims)), notes) if claims else None
    is_running = holder is not None and holder.is_alive() is not False
    holdings = read_holdings(run, notes, is_running=is_running)
    return stages, tell_attempts(events, holdings, stages)


def _told_stages(events: Sequence[Mapping[str, Any]]) -> list[str]:
    """In the order in which they were worked on."""
    told = [e.get("stage") for e in events if e["kind"] == "worker-started"]
    return list(dict.fromkeys(name for name in told if isinstance(name, str)))


def read_holdings(run: RunFolder, notes: list[str], *, is_running: bool) -> dict[int, Holding]:
    """What the folders of claims and jobs say of each attempt."""
    claims = _or_note(lambda: list_claims(run), notes) or []
    files = _or_note(lambda: metric_files(run), notes) or {}
    found = {}
    for claim in claims:
        is_last = claim == max(claims)
        holding = _holding(run, claim, notes, is_running=is_running and is_last)
        if claim in files:
            rows = _or_note(lambda: read_last_lines(files[claim]), notes) or []  # noqa: B023
            holding = replace(holding, reached=_last_step(rows))
        found[claim] = holding
    return found


def _holding(run: RunFolder, claim: int, notes: list[str], *, is_running: bool) -> Holding:
    holder = _or_note(lambda: read_holder(run, claim), notes)
    end = _or_note(lambda: read_attempt_end(run, claim), notes)
    if holder is None:
        return Holding(end=end, is_running=is_running and end is None)
    is_name = not {"/", "\0"} & set(holder.job)  # else somebody else wrote it
    job = job_folder(run.path.parent, holder.job if is_name else "")
    origin = _or_note(lambda: read_json_or_none(job.origin(holder.start)), notes) or {}
    order = _or_note(lambda: read_json_or_none(job.order), notes) or {}
    return Holding(
        job=holder.job or None,
        scheduler_job=_text(origin.get("number")),
        partition=_partition(order),
        node=holder.host.split(":")[0] or None,
        taken_at=holder.at,
        end=end,
        is_running=is_running and end is None,
    )


def _text(value: object) -> str | None:
    return str(value) if isinstance(value, str | int) else None


def _partition(order: Mapping[str, Any]) -> str | None:
    """Which the job was submitted to, where it was named."""
    options = order.get("options")
    words = [str(word) for word in options] if isinstance(options, list) else []
    named = [word.partition("=")[2] for word in words if word.startswith("--partition=")]
    return named[-1] if named else None


def _last_step(rows: Sequence[Mapping[str, Any]]) -> tuple[str, int] | None:
    for row in reversed(rows):
        stage, step = row.get("stage"), row.get("step")
        if isinstance(stage, str) and isinstance(step, int):
            return stage, step
    return None


def _ledger(events: Sequence[dict[str, Any]], state: str | None, now: float) -> Ledger:
    """Up to now while it runs or waits; of one that nobody goes on with, up to its last end."""
    attempts = read_attempts(events, None)
    ended = {e["claim"] for e in events if e["kind"] == "attempt-ended"}
    is_open = any(attempt.claim not in ended for attempt in attempts[-1:])
    goes_on = state == "running" or (state == "waiting" and not is_open)
    return make_ledger(events, now=now if goes_on else None)


def _hint(run: RunFolder, state: str | None) -> str:
    """What to do now, where nobody goes on by himself."""
    if state not in (*_STOPPED, "handed-over"):
        return ""
    said = last_said(run)
    if said is not None and state == "held":
        return how_to_lift(run, said)
    if said is not None and said.hint and state in _STOPPED:
        return said.hint
    if state == "failed" and (told := hint_of_crashed(run)):
        return told
    if state == "failed":
        return f"mend it, then `tasuki resume {run.name} --code current`"
    return f"`tasuki resume {run.name}` goes on from the last checkpoint"


def _or_note(read: Callable[[], T], notes: list[str]) -> T | None:
    """One file that cannot be read hides no other; why it cannot is told once."""
    try:
        return read()
    except StoreError as error:
        if error.message not in notes:
            notes.append(error.message)
        return None
