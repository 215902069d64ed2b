"""A run as `relay` wants to see it, read from its folder."""

from __future__ import annotations

from typing import Any

from tasuki.relay.decide import counts_as_failure
from tasuki.relay.values import Cause, Ending, PhaseEnded, RunView, StageView
from tasuki.store.atomic import read_json
from tasuki.store.attempts import read_attempt_ends
from tasuki.store.control import Said, Word, everything_said
from tasuki.store.runs import RunFolder


def read_view(run: RunFolder, *, until: str | None, requeue: bool | int) -> RunView:
    if run.is_complete():
        return RunView(stages=(), is_complete=True)
    stages = tuple(_read_stage(run, stage) for stage in read_json(run.spec)["stages"])
    said = everything_said(run)
    ends = read_attempt_ends(run)
    return RunView(
        stages=stages,
        until=until,
        word=str(said[-1].word) if said else None,
        failures=_count_failures(ends, forgiven=_forgiven(said)),
        preemptions=sum(1 for end in ends.values() if end and end.get("cause") == "preempted"),
        requeue=requeue,
    )


def _read_stage(run: RunFolder, stage: dict[str, Any]) -> StageView:
    folder = run.stage(stage["name"])
    return StageView(
        name=stage["name"],
        is_trained=folder.metrics.exists(),
        wants_evaluation=bool(stage["evaluates"]),
        is_evaluated=folder.evaluation.exists(),
    )


def _forgiven(said: list[Said]) -> int:
    """Attempts up to this one are forgiven: a person looked and said go on."""
    return max((s.claim for s in said if s.word is Word.LIFT), default=0)


def _count_failures(ends: dict[int, dict[str, Any] | None], *, forgiven: int) -> int:
    failures = 0
    for claim in sorted(ends, reverse=True):
        end = ends[claim]
        if claim <= forgiven:
            break
        if end is None:
            continue  # died without a word, or is the one that asks: neither a success nor a fault
        if not counts_as_failure(read_end(end)):
            break
        failures += 1
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
