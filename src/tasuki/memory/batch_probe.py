"""Real steps on the device with the largest samples of a bucket: do they fit, and how much do they
take.

Two optimizer steps each, since the optimizer's states come in the first; two micro-batches a step
where the stage will have several, since gradients of the first lie there during the second. What is
learnt is thrown away: this is the tuner's child (batch_size.py), not the run. A step that runs out
of memory is an answer.
"""

from __future__ import annotations

import gc
import traceback
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import torch

from tasuki.data.fetch import Request
from tasuki.data.loader import MicroBatch
from tasuki.data.order import Order
from tasuki.errors import RunError
from tasuki.loop.ranks import ALONE
from tasuki.spec.resolved import ResolvedStage
from tasuki.train.advice import is_out_of_memory
from tasuki.train.assemble import assemble, make_engine
from tasuki.train.data import StageData, sizes_of
from tasuki.train.footprint import count_bytes, tensors_in
from tasuki.train.gauge import Gauge

_STEPS = 2
_LOOKED_AT = 32
"""Samples, where nothing tells their sizes: the largest of these stand for all."""


class LargestSamples:
    """Of each bucket, the largest first."""

    def __init__(self, recipe: Any, data: StageData) -> None:
        assert isinstance(data.order, Order)
        self._data, self._plan = data, data.order.plan
        self._sizes = sizes_of(recipe, data.dataset)
        self._ranked: dict[int, list[int]] = {}

    def of(self, bucket: int, num: int) -> list[int]:
        """So many; where there are fewer they come again and again."""
        ranked = self._ranked.get(bucket, [])
        if len(ranked) < min(num, self._plan.buckets[bucket].samples):
            ranked = self._ranked[bucket] = self._rank(bucket, num)
        return [ranked[n % len(ranked)] for n in range(num)]

    def _rank(self, bucket: int, num: int) -> list[int]:
        index = self._plan.index(bucket)
        if index is None:
            index = np.arange(self._plan.num_samples, dtype=np.int64)
        if self._sizes is None:
            return self._looked_at(index)
        sizes = np.asarray(self._sizes)[index]
        num = min(num, len(index))
        largest = np.argpartition(-sizes, num - 1)[:num]
        found: list[int] = index[largest[np.argsort(-sizes[largest], kind="stable")]].tolist()
        return found

    def _looked_at(self, index: Any) -> list[int]:
        places = np.unique(np.linspace(0, len(index) - 1, _LOOKED_AT).astype(np.int64))
        some: list[int] = index[places].tolist()
        taken = {number: self._bytes_of(number) for number in some}
        if len(set(taken.values())) == 1:
            return index[: max(_LOOKED_AT, 1)].tolist()  # type: ignore[no-any-return]
        largest = max(taken.values())
        return [number for number in some if taken[number] >= largest]

    def _bytes_of(self, number: int) -> int:
        return count_bytes(tensors_in(self.fetch([number])))

    def fetch(self, indices: Sequence[int]) -> Any:
        fetcher = self._data.fetcher
        return fetcher(Request(list(indices), [0] * len(indices) if fetcher.is_seeded else None))


class RealSteps:
    """The stage's model with what moves it, on the device."""

    def __init__(
        self,
        recipe: Any,
        stage: ResolvedStage,
        samples: LargestSamples,
        *,
        device: torch.device,
        ranks: int,
        total_steps: int,
        gauge: Gauge,
    ) -> None:
        stage = msgspec.structs.replace(stage, compile=False)
        self._samples, self._device, self._gauge = samples, device, gauge
        assembled = assemble(recipe, stage, device=device, total_steps=total_steps, say=_nothing)
        self._engine = make_engine(
            recipe, stage, assembled, ranks=ALONE, device=device, num_shapes=1, say=_nothing
        )
        trained = [p for p in assembled.model.parameters() if p.requires_grad]
        num_bytes = sum(p.numel() * p.element_size() for p in trained) if ranks > 1 else 0
        # As DDP's copy of all gradients.
        self._copy = torch.empty(num_bytes, dtype=torch.uint8, device=device)

    def try_batches(self, pieces: Sequence[list[int]]) -> int | None:
        """The peak of steps with these micro-batches. None: no room."""
        num = sum(map(len, pieces))
        self._clear()
        self._gauge.reset()
        before, done = self._gauge.peak_bytes(), 0
        try:
            for _ in range(_STEPS):
                self._engine.step(self._batches(pieces), num)
                done += 1
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            traceback.clear_frames(error.__traceback__)
        peak = self._gauge.peak_bytes()
        self._clear()
        if done < _STEPS:
            return None
        if peak <= before and self._device.type != "cuda":  # CUDA's cache may hold it all already
            raise RunError("steps took no memory that can be measured")
        return peak

    def _batches(self, pieces: Sequence[list[int]]) -> Iterator[MicroBatch]:
        for indices in pieces:
            yield MicroBatch(self._samples.fetch(indices), len(indices))

    def _clear(self) -> None:
        self._engine.forget()
        self._engine.window.entries.clear()
        self._engine.scalars = {}
        gc.collect()
        if self._device.type == "cuda":
            torch.cuda.empty_cache()


def _nothing(_: str) -> None:
    """The run says it."""
