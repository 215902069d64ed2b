"""A plan: jobs, their lanes, the pieces of stages in them; as JSON what scripts read."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from tasuki.errors import PlanError
from tasuki.units import format_seconds

FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A part of a stage's work that one job is expected to do."""

    experiment: str
    stage: str
    kind: str
    """train or evaluate."""
    from_step: int | None
    to_step: int | None
    micro_batch: int | None
    """None: it is `auto`, and nothing foretells it; or a budget bounds it."""
    accumulation: int | None
    effective_batch: int | None
    gradient_checkpointing: bool | str
    expected_s: float | None
    peak_bytes: int | None
    source: str
    budget: int | str | None = None
    """The most that a micro-batch may cost, or `auto`; None: samples are counted."""
    batch_source: str = "given"
    """Of both: given, this run, history, predicted, whole share, auto, command."""
    start_s: float | None = None
    """When it is expected to begin, from the plan's beginning; None: not known."""
    cpus: int | None = None
    """Of its job's CPUs, while it runs; None: all of them."""
    measured_ago_s: float | None = None
    """`measured here`, but not for this plan: how long ago."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    gpus: tuple[int, ...]
    stages: tuple[Piece, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    name: str
    after: tuple[str, ...]
    limit_s: float | None
    expected_s: float | None
    reserve_s: float
    """Kept free at the end for the last save and the evaluation."""
    gpus: int
    """On each node: those of the cluster, or as many as its lanes need."""
    cpus: int
    host_bytes: int | None
    lanes: tuple[Lane, ...]
    cost: float | None = None
    """Of all its GPUs for as long as it is expected to last; None: not known."""
    start_s: float | None = None
    """When it is expected to begin, from the plan's beginning, if it never waits in a queue."""
    useful: float | None = None
    """The share of its GPUs' time that goes into steps and evaluations."""

    def __post_init__(self) -> None:
        if self.limit_s is not None and self.reserve_s >= self.limit_s:
            raise PlanError(
                f"a job of {format_seconds(self.limit_s)} cannot keep "
                f"{format_seconds(self.reserve_s)} free for its last save and evaluation",
                hint="ask for a longer `cluster.time_limit`, or a shorter `evaluate.reserve`",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    id: str
    jobs: tuple[Job, ...]
    makespan_s: float | None
    lower_bound_s: float | None
    gap: float | None
    optimal: bool | None
    cost: float | None
    reasons: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    makespan_s_p10: float | None = None
    makespan_s_p90: float | None = None
    """Between these it ends in four of five cases, as far as its sources' error bars tell."""
    gpu_hours: float | None = None
    """Of all jobs, as long as they are expected to last."""
    deadline_s: float | None = None
    """From the plan's beginning; None: there is none."""
    fits: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By `experiment/stage`: what was chosen at the same effective batch, what lost, and why."""
    predictions: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By `experiment/stage`: what finished stages are compared with, and predictions learn from."""

    def as_json(self) -> dict[str, Any]:
        return {"format": FORMAT, **asdict(self)}


@dataclass(frozen=True, slots=True, kw_only=True)
class StageWork:
    """What is left to do of one stage."""

    experiment: str
    stage: str
    wall_s: float | None
    """Of the steps that are left."""
    from_step: int | None
    total_steps: int | None
    start_s: float
    save_s: float
    trains: bool = True
    evaluates: bool
    evaluate_s: float | None
    """Measured, or the reserve that was asked for."""
    source: str
    gpus: int = 1
    """Of its job, while it trains: its ranks (on each node)."""
    cpus: int | None = None
    """Of its job, while it trains; None: its share by GPUs."""
    starts_from: str | None = None
    """`EXPERIMENT/STAGE`, where it needs the weights of another experiment."""
    error: float | None = None
    """How much longer nine of ten runs take at the most, as a share; None: nobody knows."""
    epochs: int | None = None
    """Of the whole stage, where it is counted in them."""
    facts: dict[str, Any] = field(default_factory=dict)
    """micro_batch, accumulation, effective_batch, budget, batch_source, gradient_checkpointing,
    peak_bytes, measured_ago_s."""
    prediction: dict[str, Any] | None = None
    """What was predicted of it before it began."""
