"""Where every second of the wall clock went, over all attempts. Pure: from events to parts.

The wall clock of a run goes from its first submission to its end. What no attempt covers is
`queue`; inside an attempt the supervisor's and the workers' events say what was done; what nobody
accounts for is `other`. So the parts always add up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

PARTS = (
    "queue",
    "start",
    "restore",
    "data_wait",
    "step",
    "recomputed",
    "validate",
    "save",
    "evaluate",
    "handover",
    "other",
)


@dataclass(frozen=True, slots=True)
class Ledger:
    parts: dict[str, float]
    wall_s: float

    @property
    def goodput(self) -> float | None:
        """The share of the allocated time that went into steps which counted."""
        allocated = self.wall_s - self.parts["queue"]
        return self.parts["step"] / allocated if allocated > 0 else None


@dataclass(slots=True)
class _Attempt:
    begin: float
    end: float
    workers: list[_Worker]


@dataclass(slots=True)
class _Worker:
    phase: str
    stage: str
    begin: float
    end: float
    parts: dict[str, float]
    told_s: float
    """How long the worker had lived when it last reported."""
    first_step: int
    last_step: int
    ended_well: bool


def make_ledger(events: Sequence[dict[str, Any]], *, now: float | None = None) -> Ledger:
    """The ledger of one run from all its events; `now` closes what is still going on."""
    attempts = _read_attempts(events, now)
    begins = [e["t"] for e in events if e.get("kind") == "submitted"]
    first = min([*begins, *(a.begin for a in attempts)], default=0.0)
    last = max([first, *(a.end for a in attempts)])
    if now is not None and not any(e.get("kind") == "complete" for e in events):
        last = max(last, now)
    parts = dict.fromkeys(PARTS, 0.0)
    _mark_recomputed(attempts)
    for attempt in attempts:
        _add_attempt(parts, attempt)
    wall = last - first
    covered = sum(a.end - a.begin for a in attempts)
    parts["queue"] = max(0.0, wall - covered)
    # Attempts of a fenced zombie overlap with their successor's: the excess is nobody's wall clock.
    excess = sum(parts.values()) - wall
    parts["other"] -= excess
    return Ledger(parts, wall)


def _read_attempts(events: Sequence[dict[str, Any]], now: float | None) -> list[_Attempt]:
    by_claim: dict[int, list[dict[str, Any]]] = {}
    for event in events:
        by_claim.setdefault(int(event.get("claim", 0)), []).append(event)
    attempts = []
    last_claim = max(by_claim, default=0)
    for claim, own in sorted(by_claim.items()):
        started = next((e for e in own if e["kind"] == "attempt-started"), None)
        if started is None:
            continue
        ended = next((e for e in own if e["kind"] == "attempt-ended"), None)
        open_end = now if now is not None and claim == last_claim else None
        end = ended["t"] if ended else (open_end or max(e["t"] for e in own))
        attempts.append(_Attempt(started["t"], end, _read_workers(own, end)))
    return attempts


def _read_workers(events: Sequence[dict[str, Any]], attempt_end: float) -> list[_Worker]:
    workers: list[_Worker] = []
    for event in events:
        kind = event["kind"]
        if kind == "worker-started":
            phase, stage = str(event.get("phase")), str(event.get("stage"))
            workers.append(
                _Worker(phase, stage, event["t"], attempt_end, {}, 0.0, 0, 0, ended_well=False)
            )
        elif workers and kind in ("progress", "time") and event.get("who") == "rank0":
            _take_progress(workers[-1], event)
        elif workers and kind == "worker-ended":
            workers[-1].end = event["t"]
            workers[-1].ended_well = event.get("ending") in ("done", "handed-over")
    return workers


def _take_progress(worker: _Worker, event: dict[str, Any]) -> None:
    worker.parts = {k: float(v) for k, v in event.get("parts", {}).items() if k in PARTS}
    worker.told_s = float(event.get("lived_s", 0.0))
    worker.first_step = int(event.get("from_step", 0))
    worker.last_step = int(event.get("step", 0))


def _mark_recomputed(attempts: list[_Attempt]) -> None:
    """Steps that a later attempt did again were not worth their time."""
    trained = [w for a in attempts for w in a.workers if w.phase == "train"]
    for worker, after in pairwise(trained):
        done = worker.last_step - worker.first_step
        if worker.stage != after.stage or done <= 0:
            continue
        lost = max(0, worker.last_step - max(after.first_step, worker.first_step))
        moved = worker.parts.get("step", 0.0) * lost / done
        worker.parts["step"] = worker.parts.get("step", 0.0) - moved
        worker.parts["recomputed"] = worker.parts.get("recomputed", 0.0) + moved


def _add_attempt(parts: dict[str, float], attempt: _Attempt) -> None:
    left = attempt.end - attempt.begin
    for worker in attempt.workers:
        lived = max(0.0, worker.end - worker.begin)
        told = min(sum(worker.parts.values()), lived)
        scale = told / sum(worker.parts.values()) if told else 0.0
        for part, seconds in worker.parts.items():
            parts[part] += seconds * scale
        parts[_rest_belongs_to(worker)] += lived - told
        left -= lived
    parts["other"] += left


def _rest_belongs_to(worker: _Worker) -> str:
    """The time a worker did not account for: before its first word, or after its last."""
    if not worker.parts:
        return "evaluate" if worker.phase == "evaluate" else "start"
    if worker.phase == "train" and not worker.ended_well:
        return "recomputed"
    return "other"
