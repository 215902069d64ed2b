"""Cut the stages of an experiment into jobs that each end before the cluster's time limit.

parts.py takes its rules of what fits. Steps are forecasts: a running job does what comes next in
its lane until its deadline, and never re-plans itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tasuki.errors import PlanError
from tasuki.planning.values import Piece, StageWork
from tasuki.units import format_seconds

LEAD_S = 1.0
"""Our own reaction and the scheduler's unevenness, kept free in each job beside the last save."""

_MOST_JOBS = 10_000
_ROUNDING = 1 + 1e-9
"""Sums of seconds are not exact: a billionth more than the room still fits."""


@dataclass(frozen=True, slots=True)
class JobDraft:
    """The pieces of one job, in order."""

    pieces: tuple[Piece, ...]
    expected_s: float | None
    reserve_s: float
    reason: str


@dataclass(slots=True)
class _Filling:
    """A job that is being filled."""

    capacity_s: float
    pieces: list[Piece] = field(default_factory=list)
    used_s: float = 0.0
    is_known: bool = True

    @property
    def left_s(self) -> float:
        return self.capacity_s - self.used_s


def cut_into_jobs(
    work: Sequence[StageWork], *, limit_s: float | None, cut: str = "stage"
) -> list[JobDraft]:
    """`cut: stage` starts a new job for a stage that does not fit the rest; `fill` fills it up."""
    if limit_s is None:
        return [_single_job(work)] if work else []
    reserve_s = reserve_of(work)
    jobs: list[_Filling] = [_Filling(capacity_of(limit_s, reserve_s))]
    for stage in work:
        _place(jobs, stage, cut)
    filled = [job for job in jobs if job.pieces]
    return [_draft(job, reserve_s, number) for number, job in enumerate(filled, 1)]


def capacity_of(limit_s: float, reserve_s: float) -> float:
    """What a job can use of its time."""
    if reserve_s >= limit_s:
        raise PlanError(
            f"a job of {format_seconds(limit_s)} cannot keep {format_seconds(reserve_s)} free for "
            "its last save",
            hint="ask for a longer `cluster.time_limit`, or make steps shorter with a smaller "
            "`effective_batch`; fewer epochs do not help: even one step and one save are too long",
        )
    return limit_s - reserve_s


def refuse_without_progress(stage: StageWork, capacity_s: float) -> None:
    least_s = stage.start_s + stage.save_s + step_seconds(stage)
    if least_s > capacity_s:
        raise PlanError(
            f"stage `{stage.stage}` cannot progress in a job: start-up "
            f"({format_seconds(stage.start_s)}), one step and one save do not fit: they take "
            f"{format_seconds(least_s)}, and of a job {format_seconds(capacity_s)} can be used",
            hint="ask for a longer `cluster.time_limit`, or make steps shorter with a smaller "
            "`effective_batch`; fewer epochs do not help: even one step is too long",
        )


def refuse_long_evaluation(stage: StageWork, capacity_s: float) -> None:
    seconds = stage.start_s + (stage.evaluate_s or 0.0)
    if seconds > capacity_s:
        raise PlanError(
            f"evaluating stage `{stage.stage}` takes {format_seconds(seconds)}, more than a job",
            hint="ask for a longer `cluster.time_limit`, split the data and evaluate a part "
            "(`evaluate.data`, `evaluate.split`), or shorten `evaluate.reserve`",
        )


def reserve_of(work: Sequence[StageWork]) -> float:
    step_s = max((step_seconds(stage) for stage in work), default=0.0)
    return LEAD_S + max((1.5 * s.save_s for s in work), default=0.0) + step_s


def step_seconds(stage: StageWork) -> float:
    """How long a step takes; 0 where it is not known."""
    if not stage.wall_s or stage.total_steps is None:
        return 0.0
    return stage.wall_s / max(1, stage.total_steps - (stage.from_step or 0))


def _place(jobs: list[_Filling], stage: StageWork, cut: str) -> None:
    """Put one stage's training and evaluation into the last job, or into new ones."""
    if not stage.trains:
        _place_evaluation(jobs, stage)
        return
    refuse_without_progress(stage, jobs[-1].capacity_s)
    if stage.wall_s is None:
        # Unknown: it goes on from job to job by requeueing, however long it takes.
        _add(jobs[-1], make_piece(stage, "train", stage.from_step, stage.total_steps, None))
        if stage.evaluates:
            _add(jobs[-1], make_piece(stage, "evaluate", None, None, None))
        jobs[-1].is_known = False
        return
    left = stage.wall_s
    step = stage.from_step
    if cut == "stage" and jobs[-1].pieces and _whole(stage, left) > jobs[-1].left_s:
        jobs.append(_Filling(jobs[-1].capacity_s))
    overhead = stage.start_s + stage.save_s
    while overhead + left > jobs[-1].left_s * _ROUNDING:
        room = jobs[-1].left_s - overhead
        if jobs[-1].pieces and room < overhead:
            room = 0.0  # not worth starting for
        seconds, to_step = part_that_fits(stage, step, room)
        if seconds > 0:
            _add(
                jobs[-1],
                make_piece(stage, "train", step, to_step, stage.start_s + seconds + stage.save_s),
            )
            left, step = left - seconds, to_step
        if len(jobs) >= _MOST_JOBS:
            raise PlanError(
                f"stage `{stage.stage}` would need more than {_MOST_JOBS:,} jobs",
                hint="ask for a longer `cluster.time_limit`, fewer `epochs`, or split the stage "
                "into several that are run by name (`--stages`)",
            )
        jobs.append(_Filling(jobs[-1].capacity_s))
    seconds = overhead + left
    _add(jobs[-1], make_piece(stage, "train", step, stage.total_steps, seconds))
    if stage.evaluates:
        _place_evaluation(jobs, stage)


def _place_evaluation(jobs: list[_Filling], stage: StageWork) -> None:
    seconds = stage.start_s + (stage.evaluate_s or 0.0)
    refuse_long_evaluation(stage, jobs[-1].capacity_s)
    if seconds > jobs[-1].left_s:
        jobs.append(_Filling(jobs[-1].capacity_s))
    _add(jobs[-1], make_piece(stage, "evaluate", None, None, seconds))


def _whole(stage: StageWork, left: float) -> float:
    evaluation = stage.start_s + (stage.evaluate_s or 0.0) if stage.evaluates else 0.0
    return stage.start_s + left + stage.save_s + evaluation


def part_that_fits(stage: StageWork, step: int | None, room_s: float) -> tuple[float, int | None]:
    """(seconds, step it ends at): whole steps where their number is known."""
    if room_s <= 0:
        return 0.0, step
    if stage.total_steps is None or step is None or not stage.wall_s:
        return room_s, None
    step_s = step_seconds(stage)
    steps = int(room_s / step_s * _ROUNDING)
    return steps * step_s, step + steps


def make_piece(
    stage: StageWork, kind: str, from_step: int | None, to_step: int | None, seconds: float | None
) -> Piece:
    facts = stage.facts
    return Piece(
        experiment=stage.experiment,
        stage=stage.stage,
        kind=kind,
        from_step=from_step,
        to_step=to_step,
        micro_batch=facts.get("micro_batch"),
        accumulation=facts.get("accumulation"),
        effective_batch=facts.get("effective_batch"),
        gradient_checkpointing=facts.get("gradient_checkpointing", False),
        expected_s=seconds,
        peak_bytes=facts.get("peak_bytes"),
        source=stage.source,
        budget=facts.get("budget"),
        batch_source=facts.get("batch_source", "given"),
        measured_ago_s=facts.get("measured_ago_s"),
    )


def _add(job: _Filling, piece: Piece) -> None:
    job.pieces.append(piece)
    job.used_s += piece.expected_s or 0.0


def _single_job(work: Sequence[StageWork]) -> JobDraft:
    job = _Filling(float("inf"))
    for stage in work:
        _place([job], stage, "fill")
    return _draft(job, reserve_of(work), 1)


def _draft(job: _Filling, reserve_s: float, number: int) -> JobDraft:
    stages = list(dict.fromkeys(piece.stage for piece in job.pieces))
    expected = job.used_s if job.is_known else None
    told = format_seconds(expected) if expected is not None else "unknown"
    return JobDraft(
        tuple(job.pieces), expected, reserve_s, f"job {number}: {', '.join(stages)} ({told})"
    )
