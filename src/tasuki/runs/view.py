"""A run as `relay` wants to see it, read from its folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tasuki.runs.atomic import read_json, shaped
from tasuki.runs.attempts import Holder, read_attempt_end, read_attempt_ends, read_holder
from tasuki.runs.claims import highest_claim
from tasuki.runs.control import Said, Word, everything_said, word_that_counts
from tasuki.runs.decide import counts_as_failure
from tasuki.runs.events import read_recent_events
from tasuki.runs.runs import RunFolder
from tasuki.runs.starts import is_cut_off
from tasuki.runs.values import Cause, Ending, PhaseEnded, RunView, StageView

SILENT_AFTER_S = 900.0
"""An attempt on another host that has said nothing for so long is taken for dead."""


def read_view(
    run: RunFolder, *, until: str | None, requeue: bool | int, trains_only: bool = False
) -> RunView:
    if run.is_complete():
        return RunView(stages=(), is_complete=True)
    with shaped(run.spec):
        spec = read_json(run.spec)
        orders = {stage["name"]: stage for stage in spec.get("spec", {}).get("stages", ())}
        stages = tuple(_read_stage(run, stage, orders) for stage in spec["stages"])
    said = everything_said(run)
    counts = word_that_counts(run, said)
    ends = read_attempt_ends(run)
    return RunView(
        stages=stages,
        until=until,
        trains_only=trains_only,
        word=str(counts.word) if counts is not None else None,
        failures=_count_failures(run, ends, forgiven=_forgiven(said)),
        preemptions=count_preemptions(run),
        requeue=requeue,
    )


def count_preemptions(run: RunFolder) -> int:
    """How many attempts a preemption has ended."""
    return read_attempts_made(run).preemptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempts:
    """Going back takes a claim, too, but a person's word is no attempt."""

    newest: int
    """Its number, which is its claim. 0: it never began."""
    count: int
    preemptions: int
    """How many of them a preemption has ended."""


def read_attempts_made(run: RunFolder) -> Attempts:
    ends = {claim: end or {} for claim, end in read_attempt_ends(run).items()}
    made = {claim: end for claim, end in ends.items() if not end.get("went_back")}
    preemptions = sum(end.get("cause") == "preempted" for end in made.values())
    return Attempts(newest=max(made, default=0), count=len(made), preemptions=preemptions)


@dataclass(frozen=True, slots=True, kw_only=True)
class Losses:
    """What interruptions cost a run so far."""

    lived_s: float = 0.0
    """Over all attempts that are over."""
    kills: int = 0
    """Attempts that stepped and ended without a save: killed, crashed, out of notice."""
    preemptions: int = 0
    """Attempts that a notice ended; where step and save do not fit it, they lose work too."""


def read_losses(run: RunFolder) -> Losses:
    """How attempts of this run ended, but for the one that asks."""
    lived_s, kills, preemptions = 0.0, 0, 0
    ends = read_attempt_ends(run)
    for claim in sorted(ends)[:-1]:
        end, holder = ends[claim], read_holder(run, claim)
        if end is None:
            kills += 1
            continue
        if holder is not None:
            lived_s += max(0.0, float(end.get("at", holder.at)) - holder.at)
        kills += bool(end.get("ending") == "failed" and end.get("has_stepped"))
        preemptions += end.get("cause") == "preempted"
    return Losses(lived_s=lived_s, kills=kills, preemptions=preemptions)


def last_save_s(run: RunFolder, *, before: int) -> tuple[float, float] | None:
    """How long training stood still for the last save of earlier attempts, and how long it took."""
    for claim in range(before - 1, max(0, before - 6), -1):
        for event in reversed(read_recent_events(run, claim)):
            told = event.get("blocked_s"), event.get("total_s")
            if event["kind"] == "committed" and all(isinstance(s, int | float) for s in told):
                return float(told[0]), float(told[1])
    return None


def live_holder(run: RunFolder, *, now: float) -> Holder | None:
    """Who works on this run now. On another host a process cannot be looked at: its events tell."""
    claim = highest_claim(run)
    if claim == 0 or read_attempt_end(run, claim) is not None:
        return None
    holder = read_holder(run, claim)
    if holder is None or holder.is_alive() is False:
        return None
    if holder.is_alive() is None:
        told = [event["t"] for event in read_recent_events(run, claim)]
        if now - max([holder.at, *told]) > SILENT_AFTER_S:
            return None
    return holder


def _read_stage(
    run: RunFolder, stage: dict[str, Any], orders: Mapping[str, dict[str, Any]]
) -> StageView:
    folder, order = run.stage(stage["name"]), orders.get(stage["name"])
    return StageView(
        name=stage["name"],
        is_trained=folder.metrics.exists(),
        wants_evaluation=bool(stage["evaluates"]),
        is_evaluated=folder.evaluation.exists(),
        is_cut_off=order is not None and is_cut_off(run, order),
    )


def _forgiven(said: list[Said]) -> int:
    """Attempts up to this one are forgiven: a person looked and said go on."""
    return max((s.claim for s in said if s.word is Word.LIFT), default=0)


def _count_failures(
    run: RunFolder, ends: dict[int, dict[str, Any] | None], *, forgiven: int
) -> int:
    failures = 0
    for claim in sorted(ends, reverse=True):
        end = ends[claim]
        if claim <= forgiven:
            break
        if end is None:
            continue  # died without a word, or is the one that asks: neither a success nor a fault
        with shaped(run.claims / str(claim) / "end.json"):
            told = read_end(end)
        if counts_as_failure(told):
            failures += 1
        elif told.has_progressed or told.ending is Ending.DONE:
            break
        # else: ended by the scheduler before its first step, neither a fault nor a success
    return failures


def read_end(end: dict[str, Any]) -> PhaseEnded:
    """`end.json` as the value it was written from."""
    return PhaseEnded(
        ending=Ending(end["ending"]),
        cause=Cause(end["cause"]),
        message=str(end.get("message", "")),
        hint=str(end.get("hint", "")),
        has_progressed=bool(end["has_progressed"]),
        has_stepped=bool(end["has_stepped"]),
    )
