"""A stage on a card: the micro-batch of each bucket, what it needs, and how long its steps take.

Pure: from the data's facts and a probe (train/survey.py), a card, and the stage's own keys. What is
given wins and is checked; else the micro-batch is the largest that fits, times the safety factor,
and never more than a rank's share of the effective batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from tasuki.data.split import resolve_batch
from tasuki.estimation.accumulated import accumulated
from tasuki.estimation.by_cost import CostProbes
from tasuki.estimation.gpus import TABLE, Gpu
from tasuki.estimation.learnt import Margin
from tasuki.estimation.memory import (
    Beside,
    Largest,
    Needs,
    beside_on,
    largest_batch,
    needs_of,
)
from tasuki.estimation.probes import Probe
from tasuki.estimation.roofline import Calibration, StepTime, probed_step_time
from tasuki.estimation.scale import Shape
from tasuki.estimation.times import StageTimes
from tasuki.spec.resolved import ResolvedStage

PREDICTED = "predicted"
GIVEN = "given"


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """Where a stage is to run."""

    gpu: Gpu
    capacity: int | None
    """Bytes of one rank; None: not known."""
    name: str = ""
    """As somebody asked for it, by which specs, site files and history know it."""
    ranks: int = 1
    """Of the whole job."""
    grows: bool = True
    """The allocator's segments."""
    calibration: Calibration | None = None
    margin: Margin | None = None
    """Both as past runs on such a card taught them; None: as is assumed."""

    @property
    def called(self) -> str:
        return self.name or self.gpu.name

    @property
    def beside(self) -> Beside:
        beside = beside_on(self.gpu, ranks=self.ranks, grows=self.grows)
        if self.margin is None:
            return beside
        return replace(beside, margin=self.margin.share, margin_source=self.margin.source)


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketFit:
    """A bucket of a stage on a card; None: not known."""

    size: int | None
    samples: int | None
    steps: int | None
    """Of an epoch."""
    micro_batch: int | None
    accumulation: int | None
    is_given: bool
    max_micro_batch: int | None
    needs: Needs | None
    """Of `micro_batch`; of one sample where not even that fits."""
    missing_bytes: int = 0
    """How much larger the card would have to be."""
    step: StepTime | None = None
    budget: int | None = None
    """The most that a micro-batch may cost, where costs decide; then its samples are no number."""
    max_budget: int | None = None

    @property
    def fits(self) -> bool:
        return not self.missing_bytes


def fit_bucket(
    stage: ResolvedStage, bucket: Mapping[str, Any], probe: Probe | None, card: Card
) -> BucketFit:
    share, given = share_of(stage, card.ranks)
    size = bucket["largest"] or 0
    micro, largest = given, _largest(probe, size, card)
    if micro is None:
        micro = _chosen(largest, share, stage)
    if probe is not None and micro < share:
        # Gradients of the first micro-batch lie there during the others.
        largest = _largest(accumulated(probe), size, card)
        micro = given or min(micro, _chosen(largest, share, stage))
    placed = put_bucket(stage, bucket, probe, card, micro=micro, share=share)
    most = None if largest is None else largest.batch
    return replace(placed, is_given=given is not None, max_micro_batch=most)


def put_bucket(
    stage: ResolvedStage,
    bucket: Mapping[str, Any],
    probe: Probe | None,
    card: Card,
    *,
    micro: int,
    share: int,
) -> BucketFit:
    """As `fit_bucket`, of this micro-batch, whatever fits: nothing is looked for."""
    if probe is not None and micro < share:
        probe = accumulated(probe)
    size, needs, missing = bucket["largest"] or 0, None, 0
    if probe is not None:
        needs = needs_of(probe, batch=micro, size=size, beside=card.beside)
        missing = 0 if card.capacity is None else -needs.headroom(card.capacity)
    return BucketFit(
        size=bucket["size"],
        samples=bucket["samples"],
        steps=bucket["steps"],
        micro_batch=micro,
        accumulation=-(-share // micro),
        is_given=True,
        max_micro_batch=None,
        needs=needs,
        missing_bytes=max(0, missing),
        step=_step(probe, stage, card, micro=micro, share=share, size=size),
    )


def fit_cost(
    stage: ResolvedStage,
    bucket: Mapping[str, Any],
    probe: Probe | None,
    small: Probe | None,
    card: Card,
) -> BucketFit:
    """Where a budget bounds a micro-batch: what is given, or what fits times the safety factor."""
    if probe is None or small is None:
        return _without_costs(stage, bucket, probe, card)
    probes = CostProbes(large=probe, small=small, dearest=bucket["cost"])
    whole, given = bucket["whole_cost"], stage.buckets.given_budget
    largest = _largest_budget(probes, card)
    budget = given or _chosen_budget(largest, whole, stage)
    if budget < whole:
        probes = probes.accumulated()
        largest = _largest_budget(probes, card)
        budget = given or min(budget, _chosen_budget(largest, whole, stage))
    needs = probes.needs(min(budget, whole), beside=card.beside)
    missing = 0 if card.capacity is None else -needs.headroom(card.capacity)
    mean = max(1, round(bucket["mean_cost"]))
    times = -(-mean // budget)
    return BucketFit(
        size=None,
        samples=bucket["samples"],
        steps=bucket["steps"],
        micro_batch=None,
        accumulation=None,
        is_given=given is not None,
        max_micro_batch=None,
        needs=needs,
        missing_bytes=max(0, missing),
        step=_step_time(probes.small, stage, card, micro=-(-mean // times), times=times, size=0),
        budget=budget,
        max_budget=None if largest is None else largest.batch,
    )


def _largest_budget(probes: CostProbes, card: Card) -> Largest | None:
    if card.capacity is None:
        return None
    return probes.largest(capacity=card.capacity, beside=card.beside)


def _chosen_budget(largest: Largest | None, whole: int, stage: ResolvedStage) -> int:
    if largest is None:
        return whole
    return max(1, min(whole, int(largest.batch * stage.safety_factor)))


def _without_costs(
    stage: ResolvedStage, bucket: Mapping[str, Any], probe: Probe | None, card: Card
) -> BucketFit:
    """Without data: a sample is taken to cost its size; where it has none, a rank's whole share is
    one micro-batch."""
    given, size = stage.buckets.given_budget, bucket["largest"]
    share, _ = share_of(stage, card.ranks)
    if given is not None and size:
        micro = max(1, min(share, given // size))
        stage = msgspec.structs.replace(stage, effective_batch=None, micro_batch=micro)
        stage = msgspec.structs.replace(stage, accumulation=-(-share // micro))
    found = fit_bucket(stage, bucket, probe, card)
    assert found.micro_batch is not None
    most = found.max_micro_batch
    return replace(
        found,
        micro_batch=None,
        accumulation=None,
        is_given=given is not None,
        max_micro_batch=None,
        budget=given or (found.micro_batch * size if size else None),
        max_budget=most * size if size and most is not None else None,
    )


def _chosen(largest: Largest | None, share: int, stage: ResolvedStage) -> int:
    if largest is None:
        return share
    return max(1, min(share, int(largest.batch * stage.safety_factor)))


def share_of(stage: ResolvedStage, ranks: int) -> tuple[int, int | None]:
    """(a rank's samples of a step, its micro-batch where the spec decides about it)."""
    micro = None if stage.micro_batch == "auto" else stage.micro_batch
    batch = resolve_batch(stage.effective_batch, micro, stage.accumulation, ranks)
    share = -(-batch.effective_batch // ranks)
    is_given = micro is not None or stage.accumulation is not None
    return share, batch.micro_batch if is_given else None


def _largest(probe: Probe | None, size: int, card: Card) -> Largest | None:
    if probe is None or card.capacity is None:
        return None
    return largest_batch(probe, capacity=card.capacity, size=size, beside=card.beside)


def _step(
    probe: Probe | None, stage: ResolvedStage, card: Card, *, micro: int, share: int, size: int
) -> StepTime | None:
    if probe is None:
        return None
    times = -(-share // micro)
    # Sixteen samples by six are 6 + 5 + 5, not 18 (data/split.py).
    return _step_time(probe, stage, card, micro=share / times, times=times, size=size)


def _step_time(
    probe: Probe, stage: ResolvedStage, card: Card, *, micro: float, times: int, size: int
) -> StepTime | None:
    """None: it was measured on a GPU, where nobody counts operations."""
    if probe.measured_on == "cuda":
        return None
    return probed_step_time(
        probe,
        batch=micro,
        size=size,
        accumulation=times,
        gpu=card.gpu,
        precision=stage.precision,
        calibration=card.calibration,
    )


def shape_of_stage(fits: Sequence[BucketFit], effective_batch: int) -> Shape | None:
    """What the stage is to go through; None: nobody counted the samples."""
    buckets = tuple((fit.size, fit.samples) for fit in fits if fit.samples)
    if not buckets or len(buckets) < len(fits):
        return None
    return Shape(buckets=buckets, effective_batch=effective_batch)


def predicted_times(facts: Mapping[str, Any], fits: Sequence[BucketFit]) -> StageTimes | None:
    """Steps by data sheet. Without the number of samples only the time of a step is known; None:
    not even that."""
    steps = [fit.steps for fit in fits if fit.steps is not None]
    times = [fit.step for fit in fits if fit.step is not None]
    if not times or len(times) < len(fits):
        return None
    error = max(time.error for time in times)
    total = facts["total_steps"]
    if len(steps) < len(fits):
        if total is None or len(fits) > 1:
            mean = times[0].seconds if len(times) == 1 else None
            return _predicted(step_s=mean, total=total, wall=None, error=error)
        steps = [1]
    epoch_s = sum(num * time.seconds for num, time in zip(steps, times, strict=True))
    step_s = epoch_s / sum(steps)
    wall = None if total is None else step_s * total
    return _predicted(step_s=step_s, total=total, wall=wall, error=error)


def _predicted(
    *, step_s: float | None, total: int | None, wall: float | None, error: float
) -> StageTimes | None:
    if step_s is None:
        return None
    return StageTimes(
        wall_s=wall,
        step_s=step_s,
        total_steps=total,
        source=PREDICTED,
        wall_s_p90=None if wall is None else wall * (1 + error),
        error=error,
    )


def smallest_card(needs: Needs) -> Gpu | None:
    """That holds so much."""
    fitting = [gpu for gpu in TABLE.values() if (gpu.memory_bytes or 0) >= needs.peak_bytes]
    return min(fitting, key=lambda gpu: (gpu.memory_bytes or 0, gpu.bandwidth or 0), default=None)


def limit_to_ask_for(seconds: float) -> float:
    """Rounded up to what people ask a scheduler for: 10 minutes, half hours, hours."""
    step = 600.0 if seconds <= 7200 else 1800.0 if seconds <= 8 * 3600 else 3600.0
    return -(-seconds // step) * step
