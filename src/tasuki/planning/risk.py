"""How much of a run is left, and whether its deadline is in danger. Pure.

The stage in work is judged by itself: by its own forecast, else by the median of its steps. Stages
that have not begun take what the plan expects of them, as uncertain as the plan is as a whole. What
a run waits in queues is not counted: nobody knows it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tasuki.runs.standing import Planned, Standing, number_in


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """Seconds of work; None: not known."""

    s: float | None = None
    s_p90: float | None = None
    """Nine of ten times it is done by then."""
    stage_s: float | None = None
    """Of the stage in work alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Risk:
    """A deadline, looked at."""

    at: float
    is_danger: bool | None
    """By what nine of ten times is enough, where that is known; None: nobody can tell."""
    late_s: float | None
    """By so much it is missed, or (below 0) met, by the same measure."""


def look_at_deadline(at: float, *, now: float, left: Left, done_at: float | None = None) -> Risk:
    """`done_at`: when the run was complete, if it is; nothing endangers it any more."""
    if done_at is not None:
        return Risk(at=at, is_danger=False, late_s=done_at - at)
    seconds = left.s_p90 if left.s_p90 is not None else left.s
    if seconds is None:  # once it has passed, that is no question any more
        late = now - at
        return Risk(at=at, is_danger=True if late >= 0 else None, late_s=late if late > 0 else None)
    late = now + seconds - at
    return Risk(at=at, is_danger=late > 0, late_s=late)


def left_of_run(run: Standing, *, now: float) -> Left:
    """What is left to do. A run that has not begun ends no sooner than its plan said: others are
    before it in its lane."""
    stage_s, stage_p90 = _stage_in_work(run)
    name = run.progress.get("stage") if stage_s is not None else None
    rest = _expected(run, now, but=name)
    if rest is None:
        return Left(stage_s=stage_s)
    whole = (stage_s or 0.0) + rest
    slow = None if stage_s is not None and stage_p90 is None else (stage_p90 or 0.0)
    whole_p90 = None if slow is None else slow + rest * (run.spread or 1.0)
    if not run.has_begun and (planned := _planned_end(run, now)) is not None:
        whole = max(whole, planned)
        whole_p90 = None if whole_p90 is None else max(whole_p90, planned)
    return Left(s=whole, s_p90=whole_p90, stage_s=stage_s)


def _stage_in_work(run: Standing) -> tuple[float | None, float | None]:
    """(seconds, 90 %) of its steps; None: none is in work, or it has not told enough."""
    name = run.progress.get("stage")
    if any(stage.name == name and stage.is_trained for stage in run.stages):
        return None, None
    left = _steps_left(run)
    step_s = number_in(run.progress, "step_s")
    if left is None or not step_s or step_s < 0:
        return None, None
    told = run.forecast
    total, step = number_in(told, "total_steps"), number_in(told, "step")
    seconds, slow = number_in(told, "left_s"), number_in(told, "left_s_p90")
    ahead = (total or 0.0) - (step or 0.0)
    if told.get("stage") != name or ahead <= 0 or seconds is None:
        return step_s * left, None
    return seconds * left / ahead, None if slow is None else slow * left / ahead


def _steps_left(run: Standing) -> float | None:
    total, step = number_in(run.progress, "total_steps"), number_in(run.progress, "step")
    return None if total is None or step is None else max(0.0, total - step)


def _expected(run: Standing, now: float, *, but: object) -> float | None:
    """Of all that is to be done beside the stage that tells of itself; None: of some nobody
    knows."""
    seconds = 0.0
    for stage in run.stages:
        own = [piece for piece in run.pieces if piece.stage == stage.name]
        if not stage.is_trained and stage.name != but:
            found = _add_up(piece for piece in own if piece.kind == "train")
            if found is None:
                return None
            seconds += found * _share_left(run, stage.name, own)
            seconds -= _worked(run, stage.name, found, now)
        if stage.lacks_evaluation:
            found = _add_up(piece for piece in own if piece.kind == "evaluate")
            if found is None:
                return None
            seconds += found
    return seconds


def _worked(run: Standing, stage: str, expected_s: float, now: float) -> float:
    """What a command that runs has done; a tenth of it counts as left, however long it takes."""
    if run.command is None or run.command[0] != stage:
        return 0.0
    return min(0.9 * expected_s, max(0.0, now - run.command[1]))


def _add_up(pieces: Iterable[Planned]) -> float | None:
    known = [piece.expected_s for piece in pieces]
    return None if not known or None in known else sum(s for s in known if s is not None)


def _share_left(run: Standing, stage: str, pieces: list[Planned]) -> float:
    """Of a stage that was begun, and of which no step is timed yet: of the steps it was planned
    with so many are left."""
    planned = [piece.steps for piece in pieces if piece.kind == "train"]
    left = _steps_left(run)
    if run.progress.get("stage") != stage or left is None or None in planned:
        return 1.0
    whole = sum(steps for steps in planned if steps is not None)
    return min(1.0, left / whole) if whole > 0 else 1.0


def _planned_end(run: Standing, now: float) -> float | None:
    """Seconds from now to the end that the plan foresaw for this run, in the turn of its lane."""
    ends = [
        piece.start_s + piece.expected_s
        for piece in run.pieces
        if piece.start_s is not None and piece.expected_s is not None
    ]
    if run.planned_at is None or not ends:
        return None
    return max(ends) - max(0.0, now - run.planned_at)
