"""When a running stage will be done, by its own epochs so far; and what its plan had said. Pure.

Everything that an epoch took counts: steps, waits for data, validations, saves.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

_FEW_EPOCHS = 0.15
"""Nine of ten stages take at most so much longer than their first epoch says; of n epochs a √n-th
of it."""
_WARM_UP = 2
"""Steps at the beginning that may be slow once: kernels are chosen, memory is found."""
_CHANGED = 0.1
"""A later forecast is told where it moves the stage's length by more."""

_LINE_CHANGED, _LINE_CHANGED_S = 0.25, 60.0
"""The log has it where it moves by more than both, of the length and in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ahead:
    """What is left of a stage, in seconds."""

    left_s: float
    left_s_p90: float
    whole_s: float
    """With what this attempt has done of it."""

    def is_news(self, told: Ahead | None) -> bool:
        return told is None or abs(self.whole_s / told.whole_s - 1) > _CHANGED

    def is_worth_a_line(self, said: Ahead | None) -> bool:
        """For a person, who does other things meanwhile."""
        if said is None:
            return True
        moved_s = abs(self.whole_s - said.whole_s)
        return moved_s > _LINE_CHANGED * said.whole_s and moved_s > _LINE_CHANGED_S


def look_ahead(
    *, done: int, left: int, elapsed_s: float, steps_per_epoch: int, first_steps: Sequence[float]
) -> Ahead:
    """From the `done` steps of this attempt, which took `elapsed_s` with all that came between.
    `first_steps`: times of all of them, in order; empty where they are no longer known."""
    slow_s = 0.0
    if len(first_steps) > 2 * _WARM_UP:
        usual = median(first_steps)
        slow_s = sum(max(0.0, seconds - usual) for seconds in first_steps[:_WARM_UP])
    left_s = max(0.0, elapsed_s - slow_s) / done * left
    longer = _FEW_EPOCHS / math.sqrt(max(1.0, done / steps_per_epoch))
    whole_s = max(1e-9, elapsed_s + left_s)
    return Ahead(left_s=left_s, left_s_p90=left_s * (1 + longer), whole_s=whole_s)


def planned_s(plan: Mapping[str, Any], *, experiment: str, stage: str, left: int) -> float | None:
    """What the plan had expected of so many steps of a stage; None: it did not know."""
    pieces = [
        piece
        for job in plan.get("jobs", ())
        for lane in job.get("lanes", ())
        for piece in lane.get("stages", ())
        if (piece.get("experiment"), piece.get("stage")) == (experiment, stage)
        and piece.get("kind") == "train"
    ]
    if not pieces or any(_length(piece) is None for piece in pieces):
        return None
    steps = sum(_length(piece) or 0 for piece in pieces)
    expected = sum(float(piece["expected_s"]) for piece in pieces)
    return expected / steps * left if steps else None


def _length(piece: Mapping[str, Any]) -> int | None:
    begin, end = piece.get("from_step"), piece.get("to_step")
    if begin is None or end is None or piece.get("expected_s") is None:
        return None
    return int(end) - int(begin)
