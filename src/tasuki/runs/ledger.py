"""Where every second of the wall clock went, over all attempts. Pure: from events to parts.

The wall clock of a run goes from its first submission to its end. A complete run that a person
takes up again rests in between: that time is nobody's, and not in it. What no attempt covers is
`queue`; inside an attempt the supervisor's and the workers' events say what was done; what nobody
accounts for is `other`. So the parts always add up.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeGuard

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


_TAKEN_UP = ("attempt-started", "went-back")


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
class Worker:
    """One phase of an attempt, as rank 0 told it."""

    phase: str
    stage: str
    begin: float
    end: float
    parts: dict[str, float] = field(default_factory=dict)
    told_at: float | None = None
    """When it last reported."""
    first_step: int = 0
    last_step: int = 0
    is_running: bool = True
    ended_well: bool = False
    is_command: bool = False
    """Of the user's own. It tells nothing of its parts, unless its loop is a `tasuki.open_run`."""
    is_loop: bool = False
    """It is one: in this attempt or another one somebody told of its loop. Until it does, an
    attempt is at its start."""
    noticed_at: float | None = None


@dataclass(slots=True)
class Attempt:
    begin: float
    end: float
    workers: list[Worker]
    gpus: int | None = None
    """Which it held, on all its nodes; None: not told."""
    price_per_gpu_hour: float | None = None
    claim: int = 0
    cause: str = ""
    """Why it ended, as `end.json` says; empty: it goes on, or died without a word."""


def make_ledger(events: Sequence[dict[str, Any]], *, now: float | None = None) -> Ledger:
    """The ledger of one run from all its events; `now` closes what is still going on."""
    if is_complete(events):
        now = None
    attempts = read_attempts(events, now)
    begins = [e["t"] for e in events if e.get("kind") == "submitted"]
    if not begins and not attempts:  # never begun, or its events are gone: not since 1970
        return Ledger(dict.fromkeys(PARTS, 0.0), 0.0)
    first = min([*begins, *(a.begin for a in attempts)])
    last = max([first, *(a.end for a in attempts), *([] if now is None else [now])])
    mark_recomputed([w for a in attempts for w in a.workers if w.phase == "train"])
    parts = dict.fromkeys(PARTS, 0.0)
    for attempt in attempts:
        _add_attempt(parts, attempt)
    covered = _covered(attempts)
    wall = max(covered, last - first - _rested(events, attempts, until=last))
    parts["queue"] = max(0.0, wall - covered)
    # Attempts of a fenced zombie overlap with their successor's: the excess is nobody's wall clock.
    parts["other"] -= sum(parts.values()) - wall
    return Ledger(parts, wall)


def is_complete(events: Sequence[dict[str, Any]]) -> bool:
    """Was it so, and has nobody taken it up again?"""
    done = [int(e.get("claim", 0)) for e in events if e.get("kind") == "complete"]
    begun = [int(e.get("claim", 0)) for e in events if e.get("kind") in _TAKEN_UP]
    return bool(done) and max(done) >= max(begun, default=0)


def _rested(
    events: Sequence[dict[str, Any]], attempts: Sequence[Attempt], *, until: float
) -> float:
    """From each completion to what was done next with the run."""
    times = [e["t"] for e in events if e.get("kind") in ("submitted", *_TAKEN_UP)]
    rests: dict[float, float] = {}
    for done in (e for e in events if e.get("kind") == "complete"):
        ends = [a.end for a in attempts if a.claim <= int(done.get("claim", 0))]
        began = max([done["t"], *ends])
        again = min((t for t in times if done["t"] < t <= until), default=began)
        rests[again] = max(0.0, again - began)
    return sum(rests.values())


def _covered(attempts: Sequence[Attempt]) -> float:
    """How long at least one attempt was there."""
    covered, reached = 0.0, float("-inf")
    for attempt in sorted(attempts, key=lambda a: a.begin):
        covered += max(0.0, attempt.end - max(attempt.begin, reached))
        reached = max(reached, attempt.end)
    return covered


def read_attempts(events: Sequence[dict[str, Any]], now: float | None) -> list[Attempt]:
    """All that were started; `now` is the end of one that still goes on."""
    by_claim: dict[int, list[dict[str, Any]]] = {}
    for event in events:
        if event.get("kind") != "submitted":  # written under the claim of the attempt before
            by_claim.setdefault(int(event.get("claim", 0)), []).append(event)
    attempts = []
    last_claim = max(by_claim, default=0)
    for claim, own in sorted(by_claim.items()):
        started = next((e for e in own if e["kind"] == "attempt-started"), None)
        if started is None:
            continue
        ended = next((e for e in own if e["kind"] == "attempt-ended"), None)
        is_open = ended is None and now is not None and claim == last_claim
        end = ended["t"] if ended else (now if is_open and now else max(e["t"] for e in own))
        workers = _read_workers(own, end, is_open=is_open)
        gpus, price = started.get("gpus"), started.get("price_per_gpu_hour")
        cause = str(ended.get("cause", "")) if ended else ""
        attempts.append(Attempt(started["t"], end, workers, gpus, price, claim, cause))
    _mark_loops([worker for attempt in attempts for worker in attempt.workers])
    return attempts


def _mark_loops(workers: Sequence[Worker]) -> None:
    loops = {(worker.phase, worker.stage) for worker in workers if worker.is_loop}
    for worker in workers:
        worker.is_loop = (worker.phase, worker.stage) in loops


def _read_workers(
    events: Sequence[dict[str, Any]], attempt_end: float, *, is_open: bool
) -> list[Worker]:
    workers: list[Worker] = []
    for event in events:
        kind = event["kind"]
        if kind == "worker-started":
            phase, stage = str(event.get("phase")), str(event.get("stage"))
            own = Worker(phase, stage, event["t"], attempt_end, is_running=is_open)
            own.is_command = bool(event.get("is_command"))
            own.is_loop = event.get("who") == "rank0"  # a script by itself
            workers.append(own)
        elif workers and event.get("who") == "rank0" and kind != "worker-ended":
            workers[-1].is_loop = True
            if kind in ("progress", "time"):
                _take_progress(workers[-1], event)
        elif workers and kind == "notice":
            workers[-1].noticed_at = event["t"]
        elif workers and kind == "worker-ended":
            _end_worker(workers[-1], event)
    return workers


def _end_worker(worker: Worker, event: dict[str, Any]) -> None:
    worker.end = event["t"]
    worker.is_running = False
    worker.ended_well = event.get("ending") in ("done", "handed-over")
    # Some launchers fail when they are told to end, and what they started has saved all the same.
    worker.ended_well |= worker.is_command and event.get("cause", "none") != "none"


def _take_progress(worker: Worker, event: dict[str, Any]) -> None:
    parts = event.get("parts")
    told = parts.items() if isinstance(parts, dict) else ()
    worker.parts = {part: float(s) for part, s in told if part in PARTS and _is_number(s)}
    worker.told_at = float(event["t"])
    first, last = event.get("from_step"), event.get("step")
    worker.first_step = int(first) if _is_number(first) else 0
    worker.last_step = int(last) if _is_number(last) else 0


def _is_number(value: object) -> TypeGuard[float]:
    """Not below 0, and no NaN: a line that somebody else wrote, or a disk garbled, adds nothing."""
    return isinstance(value, int | float) and 0 <= value <= sys.float_info.max


def mark_recomputed(trained: Sequence[Worker]) -> None:
    """Steps that any later attempt did again were not worth their time."""
    for number, worker in enumerate(trained):
        later = [
            after.first_step
            for after in trained[number + 1 :]
            if after.stage == worker.stage and after.told_at is not None
        ]
        done = worker.last_step - worker.first_step
        if not later or done <= 0:
            continue
        lost = max(0, worker.last_step - max(min(later), worker.first_step))
        moved = worker.parts.get("step", 0.0) * lost / done
        worker.parts["step"] = worker.parts.get("step", 0.0) - moved
        worker.parts["recomputed"] = worker.parts.get("recomputed", 0.0) + moved


def _add_attempt(parts: dict[str, float], attempt: Attempt) -> None:
    left = attempt.end - attempt.begin
    for worker in attempt.workers:
        lived = max(0.0, worker.end - worker.begin)
        if worker.is_command and not worker.is_loop:
            _add_command(parts, worker, lived)
            left -= lived
            continue
        total = sum(worker.parts.values())
        told = min(total, lived)
        for part, seconds in worker.parts.items():
            parts[part] += seconds * (told / total if total else 0.0)
        spoke = lived if worker.told_at is None else max(0.0, worker.told_at - worker.begin)
        until = max(told, min(spoke, lived))
        parts[_before_its_last_word(worker)] += until - told
        parts[_after_its_last_word(worker)] += lived - until
        left -= lived
    parts["other"] += left


def _add_command(parts: dict[str, float], worker: Worker, lived: float) -> None:
    """All its time but for what came after a notice; nobody knows what a failed one has saved."""
    part = "step" if worker.ended_well or worker.is_running else "recomputed"
    noticed = worker.end if worker.noticed_at is None else worker.noticed_at
    worked = min(lived, max(0.0, noticed - worker.begin))
    parts["evaluate" if worker.phase == "evaluate" else part] += worked
    parts["handover"] += lived - worked


def _before_its_last_word(worker: Worker) -> str:
    if worker.told_at is not None:
        return "other"
    return "evaluate" if worker.phase == "evaluate" else "start"


def _after_its_last_word(worker: Worker) -> str:
    if worker.phase != "train" or worker.ended_well:
        return "other"
    return "step" if worker.is_running else "recomputed"
