"""Is a phase a command? What a lane asks before it starts one; command.py does the rest.

Apart, because most jobs have no commands and a supervisor's start is measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tasuki.runs.atomic import read_json, read_json_or_none, shaped
from tasuki.runs.runs import RunFolder

LEAST_WORK_S = 60.0
"""An attempt that worked for so long before it was ended is believed to have saved something."""


def read_command(run: RunFolder, stage: str, kind: str) -> tuple[str, ...] | None:
    """The words of a stage's training or evaluation; None: a recipe does it."""
    with shaped(run.spec):
        stages = read_json(run.spec)["stages"]
        found: dict[str, Any] = next((one for one in stages if one["name"] == stage), {})
        words = found.get("command" if kind == "train" else "evaluate_command")
        return None if words is None else tuple(map(str, words))


def read_ranks(run: RunFolder, stage: str) -> int | None:
    """How many processes of its command are started; None: one, which does as it likes."""
    with shaped(run.spec):
        stages = read_json(run.spec)["spec"]["stages"]
        ranks = next((one.get("ranks") for one in stages if one["name"] == stage), None)
        return ranks if isinstance(ranks, int) and ranks > 1 else None


def has_worked(events: Sequence[Mapping[str, Any]], *, now: float) -> bool:
    """Is an attempt whose supervisor died believed to have saved something, by its command?"""
    began = [e["t"] for e in events if e["kind"] == "worker-started" and e.get("is_command")]
    return bool(began) and now - min(began) >= LEAST_WORK_S


def begin_state(run: RunFolder, stage: str) -> dict[str, Any]:
    """Of `training_state.json`: nobody counts the steps of a command. What its loop
    (`tasuki.open_run`) told in an earlier attempt stays: its checkpoints are there."""
    told = read_json_or_none(run.training_state) or {}
    if told.get("stage") == stage and told.get("last_checkpoint") is not None:
        return {}
    nothing = ("epoch", "step", "total_steps", "samples", "best", "last_checkpoint")
    return {"stage": stage, **dict.fromkeys(nothing)}
