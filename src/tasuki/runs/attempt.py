"""The end of an attempt, as who holds its claim writes it: a supervisor, or a loop without one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tasuki.clock import Clock, utc
from tasuki.runs.atomic import FORMAT, read_json_or_none, write_json
from tasuki.runs.attempts import write_attempt_end
from tasuki.runs.claims import highest_claim, is_superseded
from tasuki.runs.events import EventLog
from tasuki.runs.runs import RunFolder
from tasuki.runs.values import Ending, PhaseEnded
from tasuki.runs.view import count_preemptions


def as_superseded(run: RunFolder, claim: int, end: PhaseEnded) -> PhaseEnded:
    """However it ended: an attempt that is not the newest has lost the run. What it met since, such
    as ENOENT of a file that the newer one swept, is no failure and nothing to hold the run for."""
    if end.ending is Ending.SUPERSEDED or not is_superseded(run, claim):
        return end
    message = f"attempt {highest_claim(run)} has taken the run"
    return replace(end, ending=Ending.SUPERSEDED, message=message, hint="")


def close_attempt(
    run: RunFolder, claim: int, end: PhaseEnded, state: str, *, events: EventLog, clock: Clock
) -> None:
    """`state` is what the run is in from now on, unless somebody else has it."""
    facts: dict[str, Any] = {
        "ending": end.ending,
        "cause": end.cause,
        "message": end.message,
        "hint": end.hint,
        "has_progressed": end.has_progressed,
        "has_stepped": end.has_stepped,
    }
    events.add("attempt-ended", **facts)
    write_attempt_end(run, claim, {**facts, "at": clock.wall()})
    if highest_claim(run) == claim:
        write_state(run, claim, state, clock=clock)
    events.close()


def write_state(run: RunFolder, claim: int, state: str, *, clock: Clock, **figures: Any) -> None:
    """`training_state.json` is derived: the loop's figures, the state of who holds the claim."""
    value = read_json_or_none(run.training_state) or {"format": FORMAT, "experiment": run.name}
    value |= {
        "state": state,
        "attempt": claim,
        "preemptions": count_preemptions(run),
        "updated_at": utc(clock.wall()),
        **figures,
    }
    write_json(run.training_state, value)
