"""How fast a model is, and how much memory it takes: `tasuki evaluate --benchmark`.

Measured is the recipe's loss without gradients, batch by batch of each size, on data that lie on
the device already: the model alone, not the reading of samples. Medians, after a warm-up.
"""

from __future__ import annotations

import contextlib
import math
import resource
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn

from tasuki.data.foreign import is_loader
from tasuki.errors import DataError
from tasuki.spec.resolved import ResolvedStage
from tasuki.train.evaluate import (
    OnProgress,
    batch_of,
    checked,
    make_batch,
    members_by_bucket,
    undisturbed,
)
from tasuki.train.precision import autocast
from tasuki.train.recipe import optional

_WARM_UP = 3
_MIN_PASSES = 10
_MAX_PASSES = 200
_BUDGET_S = 3.0
"""For all sizes together, once each has its _MIN_PASSES."""
_MAX_SIZES = 12
_DISTINCT = 4
"""Batches of a size that are taken in turn."""


@dataclass(frozen=True, slots=True)
class _Pace:
    """What was measured of one size."""

    size: int | None
    samples: int
    """Of the data that it stands for."""
    batch: int
    seconds: tuple[float, ...]
    """Of each pass."""
    peak_bytes: int

    @property
    def rate(self) -> float:
        return self.batch / median(self.seconds)

    def as_json(self) -> dict[str, Any]:
        return {
            "size": self.size,
            "samples": self.samples,
            "batch": self.batch,
            "passes": len(self.seconds),
            "samples_per_s": self.rate,
            **_latency(self.seconds),
            "peak_bytes": self.peak_bytes,
        }


def benchmark_model(
    recipe: Any,
    model: nn.Module,
    dataset: Any,
    *,
    stage: ResolvedStage,
    device: torch.device,
    on_progress: OnProgress = lambda _done, _total: None,
) -> dict[str, Any]:
    """The recipe's own `benchmark`, else samples/s, latency and peak, in all and of each size."""
    own = optional(recipe, "benchmark")
    if not own and is_loader(dataset):
        raise DataError(
            "the recipe brings a loader of its own, whose batches cannot be chosen for a benchmark",
            hint="give the recipe benchmark(self, model, dataset), or a map-style data set",
        )
    with undisturbed(model), autocast(stage.precision, device, is_cached=False):
        if own:
            return dict(checked(own(model, dataset), by="benchmark"))
        found = members_by_bucket(recipe, dataset, stage)
        groups = _groups([(size, members.tolist()) for size, members in found])
        paces = []
        for number, (size, members, samples) in enumerate(groups, 1):
            batch = min(batch_of(stage), len(members))
            ready = [
                make_batch(recipe, dataset, members[at : at + batch], stage=stage, device=device)
                for at in range(0, min(len(members), batch * _DISTINCT) - batch + 1, batch)
            ]
            seconds, peak = _measure(recipe, model, ready, device, budget_s=_BUDGET_S / len(groups))
            paces.append(_Pace(size, samples, batch, seconds, peak))
            on_progress(number, len(groups))
    return _together(paces, device)


def _groups(
    by_size: Sequence[tuple[int | None, list[int]]],
) -> list[tuple[int | None, list[int], int]]:
    """(size, its samples, how many it stands for): of many sizes some, up to the largest, each
    standing for the smaller ones before it."""
    num = min(len(by_size), _MAX_SIZES)
    ends = [(number + 1) * len(by_size) // num for number in range(num)]
    return [
        (*by_size[end - 1], sum(len(members) for _, members in by_size[start:end]))
        for start, end in zip([0, *ends], ends, strict=False)
    ]


def _measure(
    recipe: Any, model: nn.Module, ready: Sequence[Any], device: torch.device, *, budget_s: float
) -> tuple[tuple[float, ...], int]:
    """(seconds of each pass, peak)."""
    for number in range(_WARM_UP):
        recipe.loss(model, ready[number % len(ready)])
    _forget_peak(device)
    seconds: list[float] = []
    while len(seconds) < _MIN_PASSES or (sum(seconds) < budget_s and len(seconds) < _MAX_PASSES):
        data = ready[len(seconds) % len(ready)]
        _wait_for(device)
        began = time.perf_counter()
        recipe.loss(model, data)
        _wait_for(device)
        seconds.append(time.perf_counter() - began)
    return tuple(seconds), _peak_bytes(device)


def _together(paces: Sequence[_Pace], device: torch.device) -> dict[str, Any]:
    """The rate is that of going through all the data once."""
    samples = sum(pace.samples for pace in paces)
    return {
        "samples_per_s": samples / sum(pace.samples / pace.rate for pace in paces),
        **_latency([s for pace in paces for s in pace.seconds]),
        "peak_bytes": max(pace.peak_bytes for pace in paces),
        "peak_of": "device" if device.type == "cuda" else "host",
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "buckets": [pace.as_json() for pace in paces],
    }


def _latency(seconds: Sequence[float]) -> dict[str, float]:
    """Of one batch."""
    ordered = sorted(seconds)
    late = ordered[math.ceil(0.95 * len(ordered)) - 1]
    return {"latency_p50_ms": median(ordered) * 1000, "latency_p95_ms": late * 1000}


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _forget_peak(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    with contextlib.suppress(OSError):  # refused: then the peak is that of the whole process
        Path("/proc/self/clear_refs").write_text("5")


def _peak_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) * 1024
    except (OSError, StopIteration, ValueError):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
