"""`python -m tasuki.train.batch_size FD`: the largest micro-batch that fits this device, by bucket,
for who asks (answers.py): a run's first start, and `tasuki tune --batch`.

A child process, which leaves nothing behind and has touched nothing of the run when it ends. The
order: {"stage": as plain values, "paths": where recipes lie, "device": "cuda:0" | "cpu", "ranks":
1, "threads": 1, "is_bounded": no more than `safety_factor` leaves of use, "parent": pid | null}.
The answer: {"capacity_bytes": null, "reason"} where no limit is known; else see `_Tuner.answer`. A
prediction (train/probe) comes first, at most four tries on the device correct it.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import signal
import time
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import torch

from tasuki.answers import Told, answer
from tasuki.data.fetch import seed_everything
from tasuki.data.order import Order
from tasuki.errors import TasukiError
from tasuki.estimate.gpus import find_gpu
from tasuki.estimate.memory import MOST_BATCH, Beside, Figure, beside_on, largest_by, needs_of
from tasuki.estimate.probes import Probe, read_probe
from tasuki.estimate.search import (
    MOST_TRIES,
    Predict,
    Tried,
    correction_of,
    largest_fitting,
    next_try,
)
from tasuki.spec.resolved import ResolvedStage, stage_from_plain, to_plain
from tasuki.testing.memory import VARIABLE, memory_cap
from tasuki.train.batch_probe import LargestSamples, RealSteps
from tasuki.train.data import StageData, prepare_data
from tasuki.train.exact import apply_settings
from tasuki.train.gauge import Gauge, name_of, open_gauge
from tasuki.train.precision import apply_precision
from tasuki.train.prepare import start_seed
from tasuki.train.probe.child import work as trace
from tasuki.train.recipe import load_recipe

_SIGNAL_ON_PARENT_DEATH = 1
_SHARES_OF_CURVE = (0.125, 0.25, 0.375, *(n / 20 for n in range(10, 21)), 1.25)
"""Of the largest batch: where the predicted peaks are told."""
_NO_LIMIT = "the memory of this device has no limit that is known"
_OWN_LOADER = "the recipe brings a loader of its own, which makes its batches itself"


def work(order: dict[str, Any], told: Told) -> dict[str, Any]:
    _die_with(order.get("parent"))
    warnings.simplefilter("ignore")
    stage = stage_from_plain(order["stage"])
    device = torch.device(order["device"])
    cap = os.environ.get(VARIABLE)
    if device.type == "cpu" and not cap:
        return {"capacity_bytes": None, "reason": _NO_LIMIT}
    assert stage.recipe is not None
    seed_everything(start_seed(stage, "model", 0))
    recipe = load_recipe(stage.recipe, stage.params, paths=[Path(p) for p in order["paths"]])
    data = prepare_data(recipe, stage, rank=0, world=order["ranks"])
    if not isinstance(data.order, Order):
        return {"capacity_bytes": None, "reason": _OWN_LOADER}
    probe, untraced = _traced(stage, order, told)
    apply_settings(threads=order["threads"], exact=stage.exact)
    apply_precision(stage.precision, device)
    with memory_cap(cap) if cap and device.type == "cpu" else contextlib.nullcontext():
        return _Tuner(recipe, stage, data, order, told).answer(probe, untraced)


def _die_with(parent: int | None) -> None:
    """A run that is killed must find its device free when it comes again."""
    if parent is not None:
        ctypes.CDLL(None).prctl(_SIGNAL_ON_PARENT_DEATH, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(0)


def _traced(
    stage: ResolvedStage, order: Mapping[str, Any], told: Told
) -> tuple[Probe | None, dict[str, str] | None]:
    """What cannot be traced is measured."""
    # Two micro-batches: gradients of the first lie there during the second.
    stage = msgspec.structs.replace(stage, accumulation=2)
    kind = torch.device(order["device"]).type
    asked = {
        "stage": to_plain(stage),
        "folder": order["paths"][0],
        "device": kind,
        "ranks": order["ranks"],
    }
    try:
        found = trace(asked, told)
    except TasukiError as error:
        return None, {"op": "", "reason": error.message}
    except Exception as error:
        return None, {"op": "", "reason": f"{type(error).__name__}: {error}"}
    finally:
        gc.collect()
    if found["probe"] is None:
        return None, found["untraced"]
    return read_probe(found["probe"]), None


class _Tuner:
    """Of one stage on one device."""

    def __init__(
        self,
        recipe: Any,
        stage: ResolvedStage,
        data: StageData,
        order: Mapping[str, Any],
        told: Told,
    ) -> None:
        self._stage, self._data, self._told = stage, data, told
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

    def answer(self, probe: Probe | None, untraced: dict[str, str] | None) -> dict[str, Any]:
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

    def _rows(self, steps: RealSteps, probe: Probe | None) -> list[dict[str, Any]]:
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
            self._told.progress("batch size", len(self._tries), MOST_TRIES)
            peak = steps.try_batch(bucket, guess, times=1 if guess >= self._share(bucket) else 2)
            self._note(bucket, guess, peak, predict)
            tried.append(Tried(guess, peak))
            guess = next_try(tried, predict=predict, capacity=self._capacity, most=most)
        found = largest_fitting(tried)
        if not found and predict is not None:
            found = self._corrected(predict, min([most, *(one.batch - 1 for one in tried)]))
        peaks = {one.batch: one.peak_bytes for one in tried}
        return found, peaks.get(found)

    def _first(self, predict: Predict | None, most: int) -> int | None:
        if predict is None:
            return next_try([], predict=None, capacity=self._capacity, most=most)
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
            "size": self._plan.buckets[bucket].size,
            "share": self._share(bucket),
            "found": found,
            "is_bounded": found >= self._most(bucket),
            "predicted_bytes": predict(max(1, found)) if predict is not None else None,
            "measured_bytes": measured,
            "curve": [list(point) for point in curve],
        }

    def _predict(self, probe: Probe, bucket: int) -> Predict:
        size = self._plan.buckets[bucket].size or 0
        beside = self._beside()
        return lambda batch: needs_of(probe, batch=batch, size=size, beside=beside).peak_bytes

    def _beside(self) -> Beside:
        """The gauge has taken CUDA's context off already, and a margin is not to be measured."""
        none = Figure(0, "measured")
        if self._device.type == "cpu":
            return replace(beside_on(find_gpu("cpu").gpu, ranks=self._ranks), margin=0.0)
        return Beside(context=none, communication=none, ranks=self._ranks, margin=0.0)

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


if __name__ == "__main__":
    answer(work)
