"""What one stage took over all its attempts: seconds by part, waits, attempts, saves. Pure.

From the events of its run, as the ledger (ledger.py), which tells the same of the whole run.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tasuki.runs.ledger import Attempt, Worker, mark_recomputed, read_attempts


@dataclass(frozen=True, slots=True, kw_only=True)
class Lately:
    """What the worker that asks knows of itself: its last events are not written yet."""

    claim: int
    first_step: int
    last_step: int
    parts: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """By one stage's training."""

    parts: dict[str, float] = field(default_factory=dict)
    """Seconds by part of the ledger; steps that were done again are `recomputed`."""
    attempts: int = 1
    preemptions: int = 0
    queue_s: float = 0.0
    """What the run waited before attempts that took this stage up first."""
    saves: tuple[tuple[float, float], ...] = ()
    """Seconds that each save stopped the training, and until it was durable."""
    train_s: float = 0.0
    """All its steps once, and the data they waited for. A worker that was killed has not told of
    its last seconds: the mean of the steps that were told of stands for the others."""


def add_up_stage(events: Sequence[dict[str, Any]], stage: str, lately: Lately) -> Spent:
    """All attempts of the stage up to now."""
    attempts = [a for a in read_attempts(events, None) if a.claim <= lately.claim]
    concerned = [attempt for attempt in attempts if _workers_of(attempt, stage)]
    workers = [worker for attempt in concerned for worker in _workers_of(attempt, stage)]
    if workers and concerned[-1].claim == lately.claim:
        _tell_last(workers[-1], lately)
    else:
        workers.append(_tell_last(Worker("train", stage, 0.0, 0.0), lately))
    train_s = _mean_step(workers) * lately.last_step
    mark_recomputed(workers)
    parts: defaultdict[str, float] = defaultdict(float)
    for worker in workers:
        for part, seconds in worker.parts.items():
            parts[part] += seconds
    return Spent(
        parts=dict(parts),
        attempts=max(1, len(concerned)),
        preemptions=sum(1 for a in concerned if a.cause == "preempted" and _is_last(a, stage)),
        queue_s=_waited(attempts, stage, events),
        saves=tuple(_saves(events, stage)),
        train_s=train_s,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Worked:
    """By a command, over all starts that it may have saved something in."""

    seconds: float = 0.0
    attempts: int = 0
    preemptions: int = 0


def add_up_command(events: Sequence[dict[str, Any]], stage: str, *, phase: str = "train") -> Worked:
    """Up to now; an attempt that failed by itself counts for nothing."""
    found = [
        (attempt, worker)
        for attempt in read_attempts(events, None)
        for worker in attempt.workers
        if worker.is_command and (worker.phase, worker.stage) == (phase, stage)
    ]
    return Worked(
        seconds=sum(max(0.0, w.end - w.begin) for _, w in found if w.ended_well),
        attempts=len(found),
        preemptions=sum(1 for attempt, _ in found if attempt.cause == "preempted"),
    )


def _mean_step(workers: Sequence[Worker]) -> float:
    told = [w.parts.get("step", 0.0) + w.parts.get("data_wait", 0.0) for w in workers]
    steps = sum(max(0, worker.last_step - worker.first_step) for worker in workers)
    return sum(told) / steps if steps else 0.0


def _workers_of(attempt: Attempt, stage: str) -> list[Worker]:
    return [w for w in attempt.workers if w.phase == "train" and w.stage == stage]


def _is_last(attempt: Attempt, stage: str) -> bool:
    """It was this stage that the attempt's end came upon."""
    return attempt.workers[-1].phase == "train" and attempt.workers[-1].stage == stage


def _tell_last(worker: Worker, lately: Lately) -> Worker:
    worker.parts = dict(lately.parts)
    worker.first_step, worker.last_step = lately.first_step, lately.last_step
    worker.told_at = worker.end
    return worker


def _waited(attempts: Sequence[Attempt], stage: str, events: Sequence[dict[str, Any]]) -> float:
    """Each wait belongs to the stage that was worked on first after it."""
    waited = 0.0
    submitted = [float(e["t"]) for e in events if e.get("kind") == "submitted"]
    before = min(submitted, default=None)
    for attempt in sorted(attempts, key=lambda a: a.begin):
        if before is not None and attempt.workers and attempt.workers[0].stage == stage:
            waited += max(0.0, attempt.begin - before)
        before = max(attempt.end, before if before is not None else attempt.end)
    return waited


def _saves(events: Sequence[dict[str, Any]], stage: str) -> list[tuple[float, float]]:
    """The first checkpoint of a stage tells no times: it is a part of the start."""
    return [
        (float(event["blocked_s"]), float(event["total_s"]))
        for event in events
        if event.get("kind") == "committed"
        and event.get("stage") == stage
        and isinstance(event.get("blocked_s"), int | float)
        and isinstance(event.get("total_s"), int | float)
    ]
