"""Events in plain words: one line each, for people who watch. Pure.

What only machines need (signs of life, figures) has no words. What they hold may come from
anywhere, so whoever shows them makes them harmless first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tasuki.runs.story import checkpoint_step, first_line
from tasuki.units import format_seconds

_CAUSES = {
    "preempted": "it is preempted",
    "limit": "its time limit is near",
    "cancelled": "it is cancelled",
    "interrupted": "it is interrupted",
    "lost": "a part of its job was lost",
}
_LONGEST = 200


def event_words(event: Mapping[str, Any]) -> str | None:
    """None: nothing that a person would want to read."""
    told = _WORDS.get(str(event.get("kind")))
    try:
        words = told(event) if told is not None else None
    except (KeyError, TypeError, ValueError, AttributeError):
        return None  # a line of ours that somebody else wrote
    return words[:_LONGEST] if words else None


def _attempt_started(event: Mapping[str, Any]) -> str:
    job = f" in job {event['job']}" if event.get("job") else ""
    return f"attempt {event['claim']} begins{job}"


def _worker_started(event: Mapping[str, Any]) -> str:
    if event.get("is_command"):
        return f"the command of stage {event['stage']} starts"
    what = "evaluation" if event.get("phase") == "evaluate" else "training"
    return f"{what} of stage {event['stage']} starts"


def _step_of(event: Mapping[str, Any]) -> int:
    step = checkpoint_step(event.get("checkpoint"))
    return int(event["step"]) if step is None else step


def _committed(event: Mapping[str, Any]) -> str | None:
    if not event.get("step"):
        return None  # a stage's start
    took = event.get("total_s")
    words = f" in {format_seconds(float(took))}" if isinstance(took, int | float) else ""
    return f"saved step {_step_of(event):,}{words}"


def _notice(event: Mapping[str, Any]) -> str:
    cause, left = str(event.get("cause")), event.get("remaining_s")
    words = f", {format_seconds(max(0.0, float(left)))} left" if left is not None else ""
    return f"notice: {_CAUSES.get(cause, cause)}{words}"


def _attempt_ended(event: Mapping[str, Any]) -> str:
    ending, cause = str(event.get("ending")), str(event.get("cause", "none"))
    message = first_line(str(event.get("message") or ""))
    because = f" ({cause})" if cause != "none" else ""
    return f"attempt {event['claim']}: {ending}{because}{f': {message}' if message else ''}"


def _evaluated(event: Mapping[str, Any]) -> str:
    metrics = event.get("metrics") or {}
    told = [f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in metrics.items()]
    return f"stage {event['stage']} evaluated: {', '.join(told)}"


def _micro_batch(event: Mapping[str, Any]) -> str:
    return f"micro-batch {event['was']} → {event['most']}: {event.get('reason')}"


_WORDS: dict[str, Callable[[Mapping[str, Any]], str | None]] = {
    "submitted": lambda e: f"job {e['job']} is given out",
    "attempt-started": _attempt_started,
    "worker-started": _worker_started,
    "restored": lambda e: f"goes on from step {_step_of(e):,}" if e.get("step") else None,
    "committed": _committed,
    "notice": _notice,
    "attempt-ended": _attempt_ended,
    "stage-done": lambda e: f"stage {e['stage']} is trained: {int(e['steps']):,} steps",
    "evaluated": _evaluated,
    "complete": lambda _: "complete: all its work is done",
    "hold": lambda e: f"held: {first_line(str(e.get('reason')))}",
    "fail": lambda e: f"failed: {first_line(str(e.get('reason')))}",
    "hung": lambda e: f"rank {e['rank']} hangs: silent for {format_seconds(float(e['silent_s']))}",
    "fell-back": lambda e: f"{e['checkpoint']} is damaged: an earlier one is taken",
    "save-failed": lambda e: f"step {int(e['step']):,} is not saved: {e.get('reason')}",
    "went-back": lambda e: f"a person goes back to step {_step_of(e):,}",
    "rolled-back": lambda e: f"not finite: back to step {int(e['to_step']):,}, skipping the bad",
    "skipped": lambda e: f"step {int(e['step']):,} is left out: not finite",
    "micro-batch": _micro_batch,
    "safety-factor": lambda e: f"safety factor {e['was']} → {e['factor']}: {e.get('reason')}",
    "inexact": lambda e: f"no longer bit for bit: {e.get('changed')}",
    "data-changed": lambda e: f"the data of stage {e['stage']} changed, as accepted",
    "code-changed": lambda _: "other code is taken",
    "loader": lambda e: f"loader: {e['workers']} workers, {e.get('reason')}",
    "warning": lambda e: f"warning: {e['text']}",
}
