"""The steps that are compared, each as one plain batch and as the micro-batches of the trade.

Which samples a step has and who gets which of them is asked of the order and the split that a run
uses. A trade that is too large for float64 on a CPU is made smaller with its proportions kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from tasuki.data.fetch import Fetcher, Request, seed_host
from tasuki.data.loader import MicroBatch
from tasuki.data.order import Order
from tasuki.data.shares import Share, StepSplit, share_of_step
from tasuki.data.split import Batch
from tasuki.train.equiv.double import map_tensors, to_double
from tasuki.train.equiv.passes import Cause, Shares

_MOST_BUCKETS = 2
_LOOKED_THROUGH = 512
_SEED = 0x5EED


def shrink(batch: Batch, *, ranks: int, most: int) -> Batch:
    """A smaller trade of the same kind: about as many micro-batches, as uneven as before."""
    if most >= batch.effective_batch:
        return batch
    samples = max(2, most)
    share = -(-samples // ranks)
    micro = max(1, batch.micro_batch * samples // batch.effective_batch)
    if micro == 1 < min(batch.micro_batch, share - 1):
        micro = 2  # a lone sample is not what the trade has
    micro = min(micro, share)
    return Batch(effective_batch=samples, micro_batch=micro, accumulation=-(-share // micro))


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of the first epoch."""

    number: int
    kind: Literal["full", "partial"]
    bucket: int
    size: int | None
    indices: tuple[int, ...]
    seeds: tuple[int, ...] | None
    shares: tuple[Share, ...]
    """Of each rank."""

    @property
    def counts(self) -> list[list[int]]:
        """Samples of the micro-batches of each rank."""
        return [list(share.counts) for share in self.shares]


def choose_steps(order: Order, split: StepSplit, *, is_seeded: bool) -> list[Step]:
    """Of the smallest and the largest size: a full step, and the one that is not full."""
    full = order.effective_batch
    buckets = range(len(order.plan.buckets))
    chosen = list(dict.fromkeys([buckets[-1], buckets[0]]))[:_MOST_BUCKETS]
    found: dict[tuple[int, str], int] = {}
    for number in _numbers(order):
        samples = order.step(0, number)
        kind = "full" if len(samples.indices) == full else "partial"
        if samples.bucket in chosen:
            found.setdefault((samples.bucket, kind), number)
    keys = [(bucket, kind) for kind in ("full", "partial") for bucket in chosen]
    return [_step(order, split, found[key], is_seeded=is_seeded) for key in keys if key in found]


def _numbers(order: Order) -> list[int]:
    """Of steps to look at: the first, the last, and those that are not full."""
    last = order.steps_per_epoch
    ends = [*range(min(_LOOKED_THROUGH, last)), *range(max(0, last - _LOOKED_THROUGH), last)]
    return list(dict.fromkeys([*ends, *order.partial_steps(0)]))


def _step(order: Order, split: StepSplit, number: int, *, is_seeded: bool) -> Step:
    samples = order.step(0, number)
    seeds = tuple(order.seeds(0, number)) if is_seeded else None
    is_full = len(samples.indices) == order.effective_batch
    return Step(
        number=number,
        kind="full" if is_full else "partial",
        bucket=samples.bucket,
        size=order.plan.buckets[samples.bucket].size,
        indices=tuple(samples.indices.tolist()),
        seeds=seeds,
        shares=tuple(
            share_of_step(order, number, replace(split, rank=rank), is_seeded=is_seeded)
            for rank in range(split.world)
        ),
    )


class _Remembered:
    """A data set whose samples are fetched once."""

    def __init__(self, dataset: Any, draws: bool) -> None:
        self._dataset = dataset
        self.draws_random_numbers = draws
        self._known: dict[int, Any] = {}

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> Any:
        if index not in self._known:
            self._known[index] = self._dataset[index]
        return self._known[index]


class Batches:
    """A step's samples, as tensors of double."""

    def __init__(self, fetcher: Fetcher, collate: Any) -> None:
        self._live = fetcher
        seeded = None if collate is None else _Seeded(collate)
        self._still = Fetcher(_Remembered(fetcher.dataset, fetcher.is_seeded), seeded)

    def plain(self, step: Step, live: frozenset[Cause]) -> list[list[MicroBatch]]:
        """All samples of a step as one micro-batch of one rank."""
        seeds = None if step.seeds is None else list(step.seeds)
        return [[self._fetch(Request(list(step.indices), seeds), len(step.indices), live)]]

    def trade(self, step: Step, live: frozenset[Cause]) -> list[list[MicroBatch]]:
        """Micro-batches of each rank. Without padding of their own they are parts of the plain
        batch."""
        if "padding" not in live:
            parts = self._parts(step, live)
            if parts is not None:
                return parts
        return [
            [self._fetch(r, n, live) for r, n in zip(share.requests, share.counts, strict=True)]
            for share in step.shares
        ]

    def is_padded(self, step: Step) -> bool:
        """Have micro-batches other shapes than their part of the plain batch?"""
        parts = self._parts(step, frozenset())
        if parts is None:
            return False
        own = self.trade(step, frozenset(("padding",)))
        pairs = zip(_flat(parts), _flat(own), strict=True)
        return any(_shapes(part.data) != _shapes(one.data) for part, one in pairs)

    def varies(self, step: Step) -> bool:
        """Is a sample, or what `collate` makes of some, not the same each time?"""
        live, still = self.trade(step, _LIVE_DATA), self.trade(step, frozenset(("padding",)))
        again = self.trade(step, _LIVE_DATA)
        return any(
            not _are_equal(one.data, other.data)
            for others in (still, again)
            for one, other in zip(_flat(live), _flat(others), strict=True)
        )

    def rows(self, step: Step, request: Request) -> list[int]:
        """Where in the plain batch its samples are."""
        places = {index: place for place, index in enumerate(step.indices)}
        return [places[index] for index in request.indices]

    def _parts(self, step: Step, live: frozenset[Cause]) -> list[list[MicroBatch]] | None:
        (((whole, num, *_),),) = self.plain(step, live)
        if not can_be_cut(whole, num):
            return None
        return [
            [
                MicroBatch(cut(whole, self.rows(step, request), num), count)
                for request, count in zip(share.requests, share.counts, strict=True)
            ]
            for share in step.shares
        ]

    def _fetch(self, request: Request, count: int, live: frozenset[Cause]) -> MicroBatch:
        fetcher = self._live if "data" in live else self._still
        return MicroBatch(to_double(fetcher(request)), count, request.indices)


_LIVE_DATA: frozenset[Cause] = frozenset(("data", "padding"))


class _Seeded:
    """A `collate` that draws the same each time."""

    def __init__(self, collate: Any) -> None:
        self._collate = collate

    def __call__(self, samples: list[Any]) -> Any:
        seed_host(_SEED)
        return self._collate(samples)


def can_be_cut(batch: Any, num: int) -> bool:
    """Has every tensor of it one row for each sample?"""
    tensors = _tensors(batch)
    return bool(tensors) and all(t.dim() > 0 and len(t) == num for t in tensors)


def cut(batch: Any, rows: Sequence[int], num: int) -> Any:
    """These samples of a batch; lists of one item for each sample are cut, too."""
    chosen = torch.as_tensor(rows)

    def part(value: Any) -> Any:
        is_texts = isinstance(value, list | tuple) and len(value) == num
        if is_texts and value and all(isinstance(v, str | bytes | int | float) for v in value):
            return type(value)(value[row] for row in rows)
        return value

    found = map_tensors(batch, lambda tensor: tensor[chosen])
    if isinstance(found, dict):
        return type(found)({key: part(value) for key, value in found.items()})
    return found


def _flat(shares: Shares) -> list[MicroBatch]:
    return [micro for share in shares for micro in share]


def _tensors(batch: Any) -> list[Tensor]:
    found: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        found.append(tensor)
        return tensor

    map_tensors(batch, keep)
    return found


def _shapes(batch: Any) -> list[torch.Size]:
    return [tensor.shape for tensor in _tensors(batch)]


def _are_equal(one: Any, other: Any) -> bool:
    a, b = _tensors(one), _tensors(other)
    return len(a) == len(b) and all(
        x.shape == y.shape and torch.equal(x.nan_to_num(), y.nan_to_num())
        for x, y in zip(a, b, strict=True)
    )


def counts_of(batch: Any, num_samples: int) -> dict[str, float]:
    """Numbers of things in a micro-batch, of which a loss may have taken the mean."""
    found: dict[str, float] = {}
    parts = batch.items() if isinstance(batch, dict) else enumerate(_tensors(batch))
    for name, value in parts:
        if not isinstance(value, Tensor):
            continue
        what = f"the entries of `{name}`"
        counts = {what: value.numel(), f"{what} that are not 0": int((value != 0).sum())}
        if not value.is_floating_point():
            counts[f"{what} that are not -100"] = int((value != -100).sum())
        found |= counts
        found |= {f"{key}, less one a sample": n - num_samples for key, n in counts.items()}
    return found
