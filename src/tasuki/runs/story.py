"""The story of a run: what each attempt did, why it ended, what was saved and what was lost. Pure.

From events and from how attempts ended, to values and one sentence each. Steps are run-wide, over
all stages, as in the names of checkpoints; what nobody told is None, never a guess. Clocks of two
hosts differ and may be set back: a time that would come out below zero is not told either.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeGuard

from tasuki.runs.series import as_number
from tasuki.units import format_seconds

_CHECKPOINT = re.compile(r"step-(\d{9,18})\.c\d+(?:\.s\d+)?", re.ASCII)
_STEPPING = ("progress", "committed", "restored", "handed-over", "rolled-back")
_KILLED = re.compile(r"was killed by (\w+) without a word")
_SIGNAL = re.compile(r"SIG[A-Z0-9]+")
_UNHURT = ("done", "handed-over", "superseded")


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSpan:
    """Where a stage lies among the steps of its run."""

    name: str
    first_step: int | None
    total_steps: int | None

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "total_steps": self.total_steps,
            "first_step": self.first_step,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """What the run's folder says of an attempt, beside its events."""

    job: str | None = None
    scheduler_job: str | None = None
    partition: str | None = None
    node: str | None = None
    taken_at: float | None = None
    end: Mapping[str, Any] | None = None
    """`end.json`; None: it runs, or died without a word."""
    is_running: bool = False
    reached: tuple[str, int] | None = None
    """(stage, step in it) of its last line of metrics, which may be later than its last event."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptStory:
    attempt: int
    job: str | None
    scheduler_job: str | None
    partition: str | None
    node: str | None
    began_at: float | None
    ended_at: float | None
    is_running: bool
    stages: tuple[str, ...]
    phase: str | None
    """What it was at when it ended: train or evaluate."""
    from_step: int | None
    to_step: int | None
    ending: str | None
    """As in `end.json`; None: it still runs, or died without a word."""
    cause: str | None
    message: str
    notice_at: float | None
    saved_step: int | None
    """Of its last checkpoint; a stage's step 0, which is a part of its start, is none."""
    save_s: float | None
    steps_lost: int | None = None
    """Which a later attempt had to do again, or would have to."""
    back_after_s: float | None = None
    is_complete: bool = False
    """With it the run was done."""
    is_command: bool = False
    """Of the user's own: nobody counts its steps, unless its loop is a `tasuki.open_run`."""
    is_word: bool = False
    """No attempt at all: a person went back to an earlier checkpoint."""
    then: str | None = None
    """held or failed: the run, by this attempt's end."""

    @property
    def lasted_s(self) -> float | None:
        return _between(self.began_at, self.ended_at)

    def as_json(self) -> dict[str, Any]:
        names = (
            *("attempt", "job", "scheduler_job", "partition", "node", "began_at", "ended_at"),
            *("lasted_s", "is_running", "stages", "phase", "from_step", "to_step", "ending"),
            *("cause", "message", "notice_at", "saved_step", "save_s", "steps_lost"),
            *("back_after_s", "is_complete", "is_word", "then"),
        )
        values = {name: getattr(self, name) for name in names}
        return {**values, "stages": list(self.stages), "sentence": sentence(self)}


# -- stages -----------------------------------------------------------------------------------


def span_stages(names: Sequence[str], events: Iterable[Mapping[str, Any]]) -> list[StageSpan]:
    """As far as anybody told how long stages are; one that never began is open."""
    totals: dict[str, int] = {}
    firsts: dict[str, int] = {}
    for event in events:
        stage, kind = event.get("stage"), event.get("kind")
        total = event.get("steps") if kind == "stage-done" else event.get("total_steps")
        if not isinstance(stage, str):
            continue
        if kind in ("progress", "stage-done", "forecast") and is_step(total):
            totals[stage] = total
        wide, own = checkpoint_step(event.get("checkpoint")), event.get("step")
        if kind in ("committed", "restored") and wide is not None and is_step(own):
            firsts[stage] = wide - own
    spans: list[StageSpan] = []
    reached: int | None = 0
    for name in names:
        first = firsts.get(name, reached)
        spans.append(StageSpan(name=name, first_step=first, total_steps=totals.get(name)))
        known = totals.get(name)
        reached = None if first is None or known is None else first + known
    return spans


def checkpoint_step(name: object) -> int | None:
    """The run-wide step in a checkpoint's name."""
    match = _CHECKPOINT.fullmatch(name) if isinstance(name, str) else None
    return int(match[1]) if match else None


def is_step(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 53


# -- attempts ---------------------------------------------------------------------------------


@dataclass(slots=True)
class _Heard:
    """What the events of one attempt tell, gathered."""

    began_at: float | None = None
    ended_at: float | None = None
    last_at: float | None = None
    stages: list[str] = field(default_factory=list)
    phase: str | None = None
    is_command: bool = False
    from_step: int | None = None
    to_step: int | None = None
    notice_at: float | None = None
    notice: str | None = None
    saved_step: int | None = None
    save_s: float | None = None
    end: Mapping[str, Any] | None = None
    is_complete: bool = False
    then: str | None = None


def tell_attempts(
    events: Sequence[Mapping[str, Any]],
    holdings: Mapping[int, Holding],
    stages: Sequence[StageSpan],
) -> list[AttemptStory]:
    """All attempts, the oldest first; those whose events are gone with what their folder says."""
    firsts = {stage.name: stage.first_step for stage in stages}
    heard: dict[int, _Heard] = {claim: _Heard() for claim in holdings}
    for event in events:
        claim = int(event["claim"])
        if claim > 0 and event["kind"] != "submitted":  # told under the attempt before
            _hear(heard.setdefault(claim, _Heard()), event, firsts)
    told = [
        _tell(claim, heard[claim], holdings.get(claim, Holding()), firsts)
        for claim in sorted(heard)
    ]
    return _joined(told)


def _hear(heard: _Heard, event: Mapping[str, Any], firsts: Mapping[str, int | None]) -> None:
    at, kind, stage = float(event["t"]), event["kind"], event.get("stage")
    heard.last_at = at if heard.last_at is None else max(heard.last_at, at)
    match kind:
        case "attempt-started":
            heard.began_at = at
        case "worker-started":
            if isinstance(stage, str) and stage not in heard.stages:
                heard.stages.append(stage)
            heard.phase = str(event.get("phase"))
            heard.is_command = bool(event.get("is_command"))
        case "notice":
            heard.notice_at, heard.notice = at, str(event.get("cause"))
        case "attempt-ended":
            heard.ended_at, heard.end = at, event
        case "complete":
            heard.is_complete = True
        case "hold" | "fail":
            heard.then = "held" if kind == "hold" else "failed"
        case _ if kind in _STEPPING:
            _hear_step(heard, event, firsts)


def _hear_step(heard: _Heard, event: Mapping[str, Any], firsts: Mapping[str, int | None]) -> None:
    kind = event["kind"]
    wide = checkpoint_step(event.get("checkpoint"))
    if kind == "rolled-back":
        wide = None  # its checkpoint lies before the steps that were skipped
    step = wide if wide is not None else _run_wide(event.get("stage"), event.get("step"), firsts)
    if step is None:
        return
    if kind == "restored" and heard.from_step is None:
        heard.from_step = step
    # A save is made beside the steps: it may be told of when later ones are done.
    is_late = kind in ("committed", "handed-over") and heard.to_step is not None
    heard.to_step = max(step, heard.to_step or 0) if is_late else step
    if kind == "committed" and event.get("step"):
        heard.saved_step, heard.save_s = step, _seconds(event.get("total_s"))


def _run_wide(stage: object, step: object, firsts: Mapping[str, int | None]) -> int | None:
    first = firsts.get(stage) if isinstance(stage, str) else None
    return first + step if first is not None and is_step(step) else None


def _tell(
    claim: int, heard: _Heard, holding: Holding, firsts: Mapping[str, int | None]
) -> AttemptStory:
    end = holding.end if holding.end is not None else heard.end
    ended_at = heard.ended_at if end is heard.end else _seconds((end or {}).get("at"))
    if end is None and not holding.is_running:
        ended_at = heard.last_at  # it died without a word: later than that, nobody knows when
    reached = _run_wide(*holding.reached, firsts) if holding.reached else None
    to_step = heard.to_step
    if reached is not None and (end or {}).get("ending") not in ("done", "handed-over"):
        to_step = reached if to_step is None else max(to_step, reached)
    return AttemptStory(
        attempt=claim,
        job=holding.job,
        scheduler_job=holding.scheduler_job,
        partition=holding.partition,
        node=holding.node,
        began_at=heard.began_at if heard.began_at is not None else holding.taken_at,
        ended_at=None if holding.is_running else ended_at,
        is_running=holding.is_running,
        stages=tuple(heard.stages),
        phase=heard.phase,
        from_step=heard.from_step,
        to_step=to_step,
        ending=str(end["ending"]) if end and end.get("ending") else None,
        cause=str(end["cause"]) if end and end.get("cause") else heard.notice,
        message=str((end or {}).get("message") or ""),
        notice_at=heard.notice_at,
        saved_step=heard.saved_step,
        save_s=heard.save_s,
        is_complete=heard.is_complete,
        is_command=heard.is_command,
        is_word=bool((end or {}).get("went_back")),
        then=heard.then,
    )


def _joined(told: Sequence[AttemptStory]) -> list[AttemptStory]:
    """With what only the attempts around one tell: what was lost, and when somebody went on."""
    joined, committed = [], None
    for number, story in enumerate(told):
        if story.saved_step is not None:
            committed = story.saved_step
        later = told[number + 1 :]
        going_on = next((one.from_step for one in later if one.from_step is not None), None)
        kept = going_on if going_on is not None else committed
        if kept is None and story.from_step is not None:
            kept = story.from_step
        lost = None
        if story.to_step is not None and kept is not None and not story.is_running:
            lost = max(0, story.to_step - kept)
        back = _between(story.ended_at, later[0].began_at) if later else None
        joined.append(replace(story, steps_lost=lost, back_after_s=back))
    return joined


def _between(begin: float | None, end: float | None) -> float | None:
    if begin is None or end is None or end < begin:
        return None
    return round(end - begin, 3)


def _seconds(value: object) -> float | None:
    return as_number(value)


# -- words ------------------------------------------------------------------------------------


def sentence(story: AttemptStory) -> str:
    """Why an attempt ended, what it saved and lost, and when the run went on: one line."""
    parts = [_why(story), *_kept(story)]
    if story.then is not None:
        parts.append(f"the run is {story.then}" if story.then == "held" else "the run has failed")
    elif story.back_after_s is not None and not (story.is_complete or story.is_word):
        parts.append(f"back after {format_seconds(story.back_after_s)}")
    return "; ".join(parts)


def _why(story: AttemptStory) -> str:
    after = f" after {format_seconds(story.lasted_s)}" if story.lasted_s is not None else ""
    where = f" in partition `{story.partition}`" if story.partition else ""
    said = first_line(story.message)
    told = f": {said}" if said else ""
    if story.is_running:
        noticed = f", has its notice ({story.cause})" if story.notice_at is not None else ""
        return f"still running{noticed}"
    if story.is_word:
        return f"a person went back{told}"
    match story.ending, story.cause:
        case None, _:
            return f"died without a word{after}: killed, or its node is gone"
        case "done", _:
            return f"{'complete' if story.is_complete else 'did what was asked of it'}{after}"
        case "superseded", _:
            return f"left the run to a newer attempt{after}"
        case "mistake", _:
            return f"failed by a mistake{after}{told}"
        case "stuck", _:
            return f"could not go on{after}{told}"
        case "handed-over", "interrupted" if _SIGNAL.fullmatch(said):
            typed = " (Ctrl-C)" if said == "SIGINT" else ""
            return f"interrupted by {said}{typed}{after}"
        case "handed-over", cause:
            return f"{_handed_over(cause, where)}{after}"
        case "failed", cause if cause not in (None, "none"):
            return f"{_handed_over(cause, where)}{after}, and did not end well{told}"
    if "supervisor died" in said:
        return f"died without a word{after}: its supervisor was killed, or its node is gone"
    if match := _KILLED.search(said):
        memory = ", often because the node's memory is full" if match[1] == "SIGKILL" else ""
        return f"killed by {match[1]}{after}{memory}"
    return f"crashed{after}{told}"


_HANDED_OVER = {
    "limit": "handed over at its time limit",
    "cancelled": "cancelled",
    "interrupted": "interrupted (Ctrl-C, or its `tasuki run` ended)",
    "lost": "handed over when a part of its job was lost (a node, or a signal by hand)",
    "none": "handed over by itself",
}


def _handed_over(cause: str | None, where: str) -> str:
    if cause == "preempted":
        return f"preempted{where}"
    return _HANDED_OVER.get(cause or "none", f"handed over ({cause})")


def _kept(story: AttemptStory) -> list[str]:
    """Of its steps."""
    if story.is_running or (story.is_complete and not story.steps_lost):
        return []
    if story.is_command and story.to_step is None:
        return []
    if story.to_step is None:
        is_training = story.phase == "train" and story.ending != "done"
        return ["before its first step: nothing to save"] if is_training else []
    told = []
    if story.saved_step is not None:
        took = f" in {format_seconds(story.save_s)}" if story.save_s is not None else ""
        is_last = story.ending in _UNHURT
        told.append(f"{'saved' if is_last else 'last saved'} step {story.saved_step:,}{took}")
    elif story.to_step == story.from_step:
        return ["no step done"] if story.phase == "train" else []
    else:
        told.append("nothing saved")
    if story.steps_lost is not None:
        told.append(f"{story.steps_lost:,} step{'s' if story.steps_lost != 1 else ''} lost")
    return told


def first_line(text: str) -> str:
    """Of a message: the rest is in the log."""
    lines = text.strip().splitlines()
    return lines[0].strip() if lines else ""
