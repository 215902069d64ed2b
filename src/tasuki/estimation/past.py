"""Past stages as values: the lines of the history, as far as they can be believed. Pure.

An evaluation is a phase of its own after the training, and so a line of its own: it is joined here
to its stage. Lines with a value that cannot be tell nothing (runs/history.py says which).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tasuki.estimation.gpus import may_mean_the_same
from tasuki.runs.history import wrong_in

EVALUATION = "evaluation"
"""The `kind` of an evaluation's line; a stage's has none, or `stage`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PastBucket:
    """Samples of one size class, and what their steps took."""

    size: int | None
    samples: int
    step_s: float | None = None
    """The mean of those that were measured; None: none was."""
    micro_batch: int | None = None
    """The most samples of one, at the stage's end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """What one finished stage measured. None: it was not, or the line is older than that."""

    key: str
    family: str | None = None
    at: float = 0.0
    run: str = ""
    stage: str = ""
    gpu: str | None = None
    device_model: str | None = None
    step_s: float
    """The median."""
    train_s: float | None = None
    """All steps that counted, and the data they waited for."""
    steps: int | None = None
    steps_per_epoch: int | None = None
    samples: int | None = None
    effective_batch: int | None = None
    buckets: tuple[PastBucket, ...] = ()
    start_s: float | None = None
    save_s: float | None = None
    blocked_s: float | None = None
    validate_s: float | None = None
    """Of one validation."""
    other_s: float | None = None
    """What no part accounts for: the end of the process."""
    evaluate_s: float | None = None
    evaluate_start_s: float | None = None
    """Of the evaluation's process, which imports less than the training's."""
    reserved_bytes: int | None = None
    predicted: Mapping[str, Any]

    @property
    def name(self) -> str:
        return f"{self.run}/{self.stage}" if self.run else "an earlier run"

    def may_be_of(self, gpu: str | None) -> bool:
        """On this card, as specs name it; else as the driver called it; nobody who tells neither is
        left out."""
        if gpu is None:
            return True
        if self.gpu is not None:
            return self.gpu.lower() == gpu.lower()
        return self.device_model is None or may_mean_the_same(gpu, self.device_model)

    @property
    def mean_step_s(self) -> float:
        """With what a median does not see: slow steps, waits for data."""
        if self.train_s and self.steps:
            return self.train_s / self.steps
        return self.step_s


def read_pasts(history: Iterable[Mapping[str, Any]]) -> list[Past]:
    """The stages that tell how long a step took, newest first."""
    lines = [fact for fact in history if wrong_in(fact) is None]
    evaluated: dict[tuple[Any, ...], Mapping[str, Any]] = {}
    for fact in sorted(lines, key=_when):
        if fact.get("kind") == EVALUATION:
            evaluated[_identity(fact)] = fact
    stages = [fact for fact in lines if is_stage(fact)]
    found = [_read(fact, evaluated.get(_identity(fact), {})) for fact in stages]
    return sorted(found, key=lambda past: past.at, reverse=True)


def is_stage(fact: Mapping[str, Any]) -> bool:
    """Tells how long a stage's steps took."""
    is_other = fact.get("kind") not in (None, "stage")
    return not is_other and bool(fact.get("key")) and bool(fact.get("step_s"))


def _when(fact: Mapping[str, Any]) -> float:
    return float(fact.get("at") or 0.0)


def _identity(fact: Mapping[str, Any]) -> tuple[Any, ...]:
    return fact.get("run"), fact.get("stage"), fact.get("sha256")


def _read(fact: Mapping[str, Any], evaluation: Mapping[str, Any]) -> Past:
    memory = fact.get("memory") or {}
    return Past(
        key=fact["key"],
        family=fact.get("family"),
        at=_when(fact),
        run=fact.get("run") or "",
        stage=fact.get("stage") or "",
        gpu=fact.get("gpu"),
        device_model=fact.get("device_model"),
        step_s=fact["step_s"],
        train_s=fact.get("train_s"),
        steps=_whole(fact, "steps"),
        steps_per_epoch=_whole(fact, "steps_per_epoch"),
        samples=_whole(fact, "samples"),
        effective_batch=_whole(fact, "effective_batch"),
        buckets=tuple(_read_bucket(bucket) for bucket in fact.get("buckets") or ()),
        start_s=fact.get("start_s"),
        save_s=fact.get("save_s"),
        blocked_s=fact.get("blocked_s"),
        validate_s=fact.get("validate_s"),
        other_s=fact.get("other_s"),
        evaluate_s=evaluation.get("evaluate_s"),
        evaluate_start_s=evaluation.get("start_s"),
        reserved_bytes=_whole(memory, "reserved_bytes"),
        predicted=fact.get("predicted") or {},
    )


def _read_bucket(bucket: Mapping[str, Any]) -> PastBucket:
    return PastBucket(
        size=_whole(bucket, "size"),
        samples=_whole(bucket, "samples") or 0,
        step_s=bucket.get("mean_s") or None,
        micro_batch=_whole(bucket, "micro_batch"),
    )


def _whole(fact: Mapping[str, Any], name: str) -> int | None:
    value = fact.get(name)
    return None if value is None else int(value)
