"""The largest micro-batch of each bucket that fits, by at most four tries on the device.

A prediction (memory) says where to begin, real steps with the worst real micro-batches correct
it (batch_probe.py), and which batch is tried next is estimation/search.py's. In samples, or in what
they cost together where the spec has `budget: auto`. Held by the tuner's child (batch_size.py).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from tasuki.data.order import Order
from tasuki.data.worst import worst_in_steps
from tasuki.estimation.by_cost import CostProbes
from tasuki.estimation.gpus import find_gpu
from tasuki.estimation.memory import MOST_BATCH, Beside, Figure, beside_on, largest_by, needs_of
from tasuki.estimation.probes import Probe
from tasuki.estimation.search import (
    MOST_TRIES,
    Predict,
    Tried,
    correction_of,
    largest_fitting,
    next_try,
)
from tasuki.memory.batch_probe import LargestSamples, RealSteps
from tasuki.memory.by_cost import worst_of
from tasuki.spec.resolved import ResolvedStage
from tasuki.subprocesses import Progress, ProgressCallback
from tasuki.train.data import StageData, parts_of_costs
from tasuki.train.gauge import Gauge, name_of, open_gauge

_SHARES_OF_CURVE = (0.125, 0.25, 0.375, *(n / 20 for n in range(10, 21)), 1.25)
"""Of the largest batch: where the predicted peaks are told."""


def beside_here(device: torch.device, *, ranks: int) -> Beside:
    """The gauge has taken CUDA's context off already, and a margin is not to be measured."""
    none = Figure(0, "measured")
    if device.type == "cpu":
        return replace(beside_on(find_gpu("cpu").gpu, ranks=ranks), margin=0.0)
    return Beside(context=none, communication=none, ranks=ranks, margin=0.0)


class Tuner:
    """Of one stage on one device, in samples."""

    unit = "samples"

    def __init__(
        self,
        recipe: Any,
        stage: ResolvedStage,
        data: StageData,
        order: Mapping[str, Any],
        progress: ProgressCallback,
    ) -> None:
        self._stage, self._data, self._progress = stage, data, progress
        assert isinstance(data.order, Order)
        self._plan, self._ranks = data.order.plan, int(order["ranks"])
        self._device = torch.device(order["device"])
        self._is_bounded = bool(order["is_bounded"])
        gauge = open_gauge(self._device)
        assert gauge is not None
        self._gauge: Gauge = gauge
        self._capacity = gauge.capacity_bytes
        self._samples = LargestSamples(recipe, data)
        self._total_steps = data.order.total_steps(stage.length.unit, stage.length.count)
        self._recipe = recipe
        self._tries: list[dict[str, Any]] = []
        self._began = time.monotonic()

    def answer(self, probe: Any, untraced: dict[str, str] | None) -> dict[str, Any]:
        steps = RealSteps(
            self._recipe,
            self._stage,
            self._samples,
            device=self._device,
            ranks=self._ranks,
            total_steps=self._total_steps,
            gauge=self._gauge,
        )
        rows = self._rows(steps, probe)
        return {
            "capacity_bytes": self._capacity,
            "device": name_of(self._device),
            "source": "measured" if probe is None else "traced",
            "untraced": untraced,
            "buckets": rows,
            "tries": self._tries,
            "took_s": time.monotonic() - self._began,
        }

    def _rows(self, steps: RealSteps, probe: Any) -> list[dict[str, Any]]:
        """The largest bucket first; what was measured there corrects the others."""
        numbers = sorted(range(len(self._plan.buckets)), key=self._size, reverse=True)
        rows: dict[int, dict[str, Any]] = {}
        largest: dict[str, Any] | None = None
        for bucket in numbers:
            predict = None if probe is None else self._predict(probe, bucket)
            if predict is None and largest is not None:
                # Smaller samples take no more than the largest.
                found, measured = min(largest["found"], self._most(bucket)), None
            else:
                found, measured = self._search(steps, bucket, predict)
            rows[bucket] = self._row(bucket, found, predict, measured)
            largest = largest or rows[bucket]
        return [rows[bucket] for bucket in sorted(rows)]

    def _search(
        self, steps: RealSteps, bucket: int, predict: Predict | None
    ) -> tuple[int, int | None]:
        """(the largest that fits, its peak where it was measured)."""
        tried: list[Tried] = []
        most = self._most(bucket)
        guess = self._first(predict, most)
        while guess is not None and len(self._tries) < MOST_TRIES:
            self._progress(Progress("trying batch sizes", len(self._tries), MOST_TRIES))
            peak = self._try(steps, bucket, guess)
            self._note(bucket, guess, peak, predict)
            tried.append(Tried(guess, peak))
            guess = self._next(tried, predict, most)
        found = largest_fitting(tried)
        if not found and predict is not None:
            found = self._corrected(predict, min([most, *(one.batch - 1 for one in tried)]))
        peaks = {one.batch: one.peak_bytes for one in tried}
        return found, peaks.get(found)

    def _try(self, steps: RealSteps, bucket: int, guess: int) -> int | None:
        times = 1 if guess >= self._share(bucket) else 2
        return steps.try_batches([self._samples.of(bucket, guess)] * times)

    def _next(self, tried: list[Tried], predict: Predict | None, most: int) -> int | None:
        return next_try(tried, predict=predict, capacity=self._capacity, most=most)

    def _first(self, predict: Predict | None, most: int) -> int | None:
        if predict is None:
            return self._next([], None, most)
        return max(1, self._corrected(predict, most))

    def _corrected(self, predict: Predict, most: int) -> int:
        """By what was measured in larger buckets."""
        pairs = [
            (one["predicted_bytes"], one["peak_bytes"])
            for one in self._tries
            if one["peak_bytes"] is not None and one["predicted_bytes"] is not None
        ]
        corrected = correction_of(pairs)
        return largest_by(lambda batch: corrected(predict(batch)) <= self._capacity, most=most)

    def _note(self, bucket: int, batch: int, peak: int | None, predict: Predict | None) -> None:
        self._tries.append(
            {
                "bucket": bucket,
                "batch": batch,
                "peak_bytes": peak,
                "predicted_bytes": predict(batch) if predict is not None else None,
            }
        )

    def _row(
        self, bucket: int, found: int, predict: Predict | None, measured: int | None
    ) -> dict[str, Any]:
        points = sorted({1, *(max(1, int(found * share)) for share in _SHARES_OF_CURVE)})
        if predict is None:
            measures = {t["batch"]: t["peak_bytes"] for t in self._tries if t["peak_bytes"]}
            curve = sorted(measures.items())
        else:
            curve = [(batch, predict(batch)) for batch in points]
        return {
            "bucket": bucket,
            "unit": self.unit,
            "size": self._plan.buckets[bucket].size,
            "share": self._share(bucket),
            "found": found,
            "is_bounded": found >= self._most(bucket),
            "predicted_bytes": predict(max(1, found)) if predict is not None else None,
            "measured_bytes": measured,
            "curve": [list(point) for point in curve],
        }

    def _predict(self, probe: Any, bucket: int) -> Predict:
        assert isinstance(probe, Probe)
        size = self._plan.buckets[bucket].size or 0
        beside = beside_here(self._device, ranks=self._ranks)
        return lambda batch: needs_of(probe, batch=batch, size=size, beside=beside).peak_bytes

    def _size(self, bucket: int) -> int:
        return self._plan.buckets[bucket].size or 0

    def _share(self, bucket: int) -> int:
        return min(self._data.split.micro_batch, self._plan.buckets[bucket].samples)

    def _most(self, bucket: int) -> int:
        """More is of no use to a run: under the factor it is a rank's whole share already. Nor is
        more than there are samples to anybody."""
        useful = int(-(-self._share(bucket) // self._stage.safety_factor))
        if self._is_bounded:
            return useful
        return min(MOST_BATCH, max(useful, self._plan.buckets[bucket].samples))


class CostTuner(Tuner):
    """In what the samples of a micro-batch cost together; all samples share one bucket."""

    unit = "cost"

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._worst = worst_of(self._data)
        self._parts: list[Any] | None = None

    def _try(self, steps: RealSteps, bucket: int, guess: int) -> int | None:
        """The dearest samples, alone where one is over the budget, even ones, and the worst of the
        run itself, in one step; the first of them once more, when the gradients of the others lie
        there. Where a rank's whole share fits a micro-batch, each is a step."""
        large, small = self._worst.of_large(guess)[0], self._worst.of_small(guess)[0]
        real = self._real(guess)
        if guess < self._share(bucket):
            return steps.try_batches([large, small, *real, large])
        peaks = [steps.try_batches([one]) for one in (large, *real)]
        known = [peak for peak in peaks if peak is not None]
        return max(known) if len(known) == len(peaks) else None

    def _real(self, guess: int) -> list[list[int]]:
        order, split = self._data.order, self._data.split
        assert isinstance(order, Order) and split.costs is not None
        if self._parts is None:
            buckets, dataset = self._stage.buckets, self._data.dataset
            self._parts = parts_of_costs(self._recipe, dataset, buckets)
        return worst_in_steps(
            order,
            split.costs,
            budget=guess,
            world=split.world,
            total_steps=self._total_steps,
            parts=self._parts,
        )

    def _next(self, tried: list[Tried], predict: Predict | None, most: int) -> int | None:
        return next_try(
            tried,
            predict=predict,
            capacity=self._capacity,
            most=most,
            first=self._worst.dearest,
            apart=max(1, self._worst.whole // 200),
        )

    def _predict(self, probe: Any, _: int) -> Predict:
        beside = beside_here(self._device, ranks=self._ranks)
        assert isinstance(probe, CostProbes)
        return lambda cost: probe.needs(cost, beside=beside).peak_bytes

    def _share(self, _: int) -> int:
        return self._worst.whole

    def _most(self, _: int) -> int:
        useful = int(-(-self._worst.whole // self._stage.safety_factor))
        return useful if self._is_bounded else max(useful, self._worst.total)
