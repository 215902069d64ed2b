"""How long a stage takes, and from where that is known. Pure: readers hand in what they found.

In order: given (`expect`), this run's own events, history, measured here by a child, else nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tasuki.estimate.facts import stage_key
from tasuki.spec.resolved import ResolvedStage

DEFAULT_START_S = 8.0
"""Interpreter, torch, data: where nothing was measured."""
DEFAULT_SAVE_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTimes:
    """What is known about a stage's time; None where nothing is."""

    wall_s: float | None
    """Training only: steps and the data they wait for."""
    step_s: float | None
    total_steps: int | None
    start_s: float = DEFAULT_START_S
    save_s: float = DEFAULT_SAVE_S
    evaluate_s: float | None = None
    source: str = "unknown"
    """given, this run, history, measured here, or unknown."""
    wall_s_p90: float | None = None
    """Nine of ten runs take no longer."""
    error: float | None = None
    """Of `wall_s`, as a relative half-width; None: nobody knows."""
    used: tuple[str, ...] = ()
    """Past runs that it was learnt from, as `run/stage`."""


def estimate_stage(
    stage: ResolvedStage,
    *,
    device: str,
    ranks: int,
    own_events: Sequence[dict[str, Any]],
    history: Iterable[dict[str, Any]],
    measured: dict[str, Any] | None,
) -> StageTimes:
    """The best known times of one stage."""
    own = _from_events(stage, own_events)
    past = _from_history(stage, device=device, ranks=ranks, history=history)
    found = next((facts for facts in (own, past, _from_measured(measured)) if facts), None)
    if stage.expect_wall_s is not None:
        known = found or StageTimes(wall_s=None, step_s=None, total_steps=None)
        steps = known.total_steps or (measured or {}).get("total_steps")
        return StageTimes(
            wall_s=stage.expect_wall_s,
            step_s=stage.expect_wall_s / steps if steps else None,
            total_steps=steps,
            start_s=known.start_s,
            save_s=known.save_s,
            evaluate_s=known.evaluate_s,
            source="given",
        )
    return found or StageTimes(
        wall_s=None, step_s=None, total_steps=(measured or {}).get("total_steps")
    )


def needs_measuring(times: StageTimes) -> bool:
    return times.source == "unknown"


def _from_events(stage: ResolvedStage, events: Sequence[dict[str, Any]]) -> StageTimes | None:
    told = [
        event
        for event in events
        if event.get("kind") == "progress"
        and event.get("stage") == stage.name
        and event.get("step_s")
    ]
    if not told:
        return None
    last = told[-1]
    steps = int(last["total_steps"])
    return _times(float(last["step_s"]), steps, last.get("parts", {}), "this run")


def _from_history(
    stage: ResolvedStage, *, device: str, ranks: int, history: Iterable[dict[str, Any]]
) -> StageTimes | None:
    key = stage_key(stage, device=device, ranks=ranks)
    same = [fact for fact in history if fact.get("key") == key and fact.get("step_s")]
    if not same:
        return None
    newest = max(same, key=lambda fact: float(fact.get("at", 0)))
    steps = _steps_of(stage, newest)
    return StageTimes(
        wall_s=newest["step_s"] * steps if steps else None,
        step_s=newest["step_s"],
        total_steps=steps,
        start_s=newest.get("start_s") or DEFAULT_START_S,
        save_s=newest.get("save_s") or DEFAULT_SAVE_S,
        source="history",
    )


def _steps_of(stage: ResolvedStage, fact: dict[str, Any]) -> int | None:
    """The length may be another one than in the past; the steps of an epoch are the same."""
    per_epoch = fact.get("steps_per_epoch")
    match stage.length.unit:
        case "steps":
            return stage.length.count
        case "epochs":
            return stage.length.count * int(per_epoch) if per_epoch else None
        case _:
            batch = fact.get("effective_batch")
            return -(-stage.length.count // int(batch)) if batch else None


def _from_measured(measured: dict[str, Any] | None) -> StageTimes | None:
    if not measured or not measured.get("step_s"):
        return None
    return StageTimes(
        wall_s=measured["step_s"] * measured["total_steps"],
        step_s=measured["step_s"],
        total_steps=measured["total_steps"],
        start_s=measured["start_s"],
        save_s=measured["save_s"],
        evaluate_s=measured.get("evaluate_s"),
        source="measured here",
    )


def _times(step_s: float, steps: int, parts: dict[str, float], source: str) -> StageTimes:
    start = parts.get("start", 0.0) + parts.get("restore", 0.0)
    return StageTimes(
        wall_s=step_s * steps,
        step_s=step_s,
        total_steps=steps,
        start_s=start or DEFAULT_START_S,
        source=source,
    )
