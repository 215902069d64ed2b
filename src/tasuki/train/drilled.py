"""What `tasuki drill` and `tasuki rehearse` ask of a rank beside its work: few samples, a trace.

Read once from the environment, as failpoints are; without an order nothing changes. Which samples
stay is a pure function of the buckets, so that every attempt and every twin has the same ones. What
a rehearsal alone wants is in rehearsed.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tasuki.data.buckets import Bucket, BucketPlan
from tasuki.data.foreign import num_batches
from tasuki.data.short import ShortLoader, may_be_left_early
from tasuki.failpoints import DRILL


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
    """Only some steps of a stage that is otherwise as it will be, its largest samples."""

    steps: int
    is_offline: bool = True
    smallest: frozenset[str] = frozenset()
    """Stages whose largest samples do not fit this machine: their smallest are taken."""
    effective_batches: Mapping[str, int] = field(default_factory=dict)
    """By stage: those of the whole, where a rehearsed step has fewer samples."""
    until: float | None = None
    """By the wall clock: what is not done by then is left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrillOrder:
    steps_per_epoch: int
    """About so many; at least one for each bucket that is kept."""
    trace: Path
    """The folder for traces."""
    rehearsal: Rehearsal | None = None
    """None: this is a drill."""


_order: list[DrillOrder] = []


def read_order(environment: Mapping[str, str]) -> None:
    """Called once by a rank, before it works."""
    _order.clear()
    told = json.loads(environment.get(DRILL) or "{}")
    if told:
        steps, wanted = int(told["steps_per_epoch"]), told.get("rehearsal")
        trace, rehearsal = Path(told["trace"]), _read_rehearsal(wanted, steps) if wanted else None
        _order.append(DrillOrder(steps_per_epoch=steps, trace=trace, rehearsal=rehearsal))


def _read_rehearsal(told: Mapping[str, Any], steps: int) -> Rehearsal:
    return Rehearsal(
        steps=steps,
        is_offline=bool(told["offline"]),
        smallest=frozenset(told["smallest"]),
        effective_batches=told["effective_batches"],
        until=told.get("until"),
    )


def drill_order() -> DrillOrder | None:
    return _order[0] if _order else None


def rehearsal() -> Rehearsal | None:
    """None: this is a run, or a drill."""
    return _order[0].rehearsal if _order else None


def fewer_samples(
    plan: BucketPlan,
    *,
    batch: int,
    stage: str = "",
    weights: Callable[[], Any] = lambda: None,
) -> BucketPlan:
    """In a drill: some buckets, the smallest and the largest among them, and of each its first
    samples, the last step of each not full; in a rehearsal the largest samples of the largest (by
    `weights`, one number per sample); otherwise the plan as it is."""
    order = drill_order()
    if order is None:
        return plan
    if order.rehearsal is not None:
        most, is_small = order.rehearsal.steps * batch, stage in order.rehearsal.smallest
        return largest_samples(plan, weights(), most=most, is_small=is_small)
    chosen = _spread(len(plan.buckets), order.steps_per_epoch)
    steps = -(-order.steps_per_epoch // len(chosen))
    most = max(1, steps * batch - batch // 3)
    buckets, members = [], []
    for number in chosen:
        bucket, index = plan.buckets[number], plan.index(number)
        count = min(bucket.samples, most)
        buckets.append(Bucket(bucket.size, count))
        members.append(np.arange(count) if index is None else np.asarray(index[:count]))
    return BucketPlan(
        buckets=tuple(buckets),
        members=np.concatenate(members).astype(np.int64),
        waste=plan.waste,
    )


def largest_samples(
    plan: BucketPlan, weights: Any, *, most: int, is_small: bool = False
) -> BucketPlan:
    """One bucket of so many samples: the largest there are, or the smallest; of equal ones the
    first."""
    number = 0 if is_small else len(plan.buckets) - 1
    bucket, index = plan.buckets[number], plan.index(number)
    members = np.arange(bucket.samples) if index is None else np.asarray(index)
    if weights is not None:
        own = np.asarray(weights)[members]
        members = members[np.argsort(own if is_small else -own, kind="stable")]
    kept = np.sort(members[:most]).astype(np.int64)
    return BucketPlan(buckets=(Bucket(bucket.size, len(kept)),), members=kept, waste=plan.waste)


def few_steps(planned: int) -> int:
    """How many of the steps that a stage has are taken."""
    order = rehearsal()
    return planned if order is None else min(planned, order.steps)


def _spread(available: int, wanted: int) -> list[int]:
    """At most `wanted` of the numbers below `available`, the first and the last among them."""
    if available <= wanted:
        return list(range(available))
    places = np.linspace(0, available - 1, wanted).round()
    return [int(place) for place in np.unique(places)]


def fewer_batches(loader: Any, *, accumulation: int = 1, is_trained: bool = False) -> Any:
    """In a drill: a loader of the user's own that ends its passes early; otherwise as it is. One
    that does not say how long a pass is goes on until the stage ends, and so does that of a
    rehearsal's training, whose steps are counted (`few_steps`)."""
    order = drill_order()
    if order is None or not may_be_left_early(loader):
        return loader
    if order.rehearsal is not None and is_trained:
        return loader
    batches = num_batches(loader)
    if batches is None:
        return loader
    return ShortLoader(loader, min(batches, order.steps_per_epoch * accumulation))
