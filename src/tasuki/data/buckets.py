"""Put the samples of a stage into buckets: those of one bucket may share a step.

Sizes come in as numbers, a few at a time where there are many; the index of a large data set lies
in a file that is mapped into memory, so that 10⁸ samples cost no memory of their own. order.py
draws each step from one bucket. Which micro-batch a bucket gets is not decided here.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tasuki.data.boundaries import best_boundaries, waste_of
from tasuki.errors import DataError

Ints = NDArray[np.int64]
Kind = Literal["default", "exact", "auto", "bounds", "single"]

FEW_SIZES = 64
"""Up to so many sizes each gets a bucket of its own, unless the spec says otherwise."""
LARGE = 1 << 22
"""More samples than this have their index in a file."""
_FORMAT = 1
_BLOCK = 1 << 20
_NAMED_SIZES = 20
"""An error names at most so many sizes."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """Samples of one size class; a size of None means that sizes are unknown or do not matter."""

    size: int | None
    """The largest size that belongs here."""
    samples: int

    def __post_init__(self) -> None:
        assert self.samples > 0, self


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketRule:
    """How buckets are made."""

    kind: Kind = "exact"
    uppers: tuple[int, ...] = ()
    """Of `bounds`."""
    count: int | None = None
    """Of `auto`; None: as many as needed."""
    power: int = 1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BucketPlan:
    """The buckets of a stage in ascending size, and which samples belong to which."""

    buckets: tuple[Bucket, ...]
    members: Ints | None
    """Dataset indices bucket after bucket, ascending in each (by score, where there are scores);
    None: sample i is number i. May be mapped from a file."""
    waste: float = 0.0
    """The share of padding if each sample is padded to its bucket's size."""
    scores: NDArray[np.float64] | None = None
    """Of every sample of the data set; None: the order does not ask for them."""
    _digests: list[str] = field(default_factory=list, repr=False)

    def __post_init__(self) -> None:
        sizes = [bucket.size for bucket in self.buckets if bucket.size is not None]
        assert len(sizes) == len(self.buckets) or len(self.buckets) == 1, sizes
        assert all(low < high for low, high in pairwise(sizes)), sizes
        assert self.members is None or len(self.members) == self.num_samples

    @property
    def num_samples(self) -> int:
        """Samples in all buckets: those that the filter left."""
        return sum(bucket.samples for bucket in self.buckets)

    def index(self, bucket: int) -> Ints | None:
        """Dataset indices of a bucket's samples, ascending; None: 0, 1, 2, … (nothing is kept)."""
        if self.members is None:
            return None
        start = sum(earlier.samples for earlier in self.buckets[:bucket])
        return self.members[start : start + self.buckets[bucket].samples]

    def fingerprint(self) -> str:
        """Equal fingerprints give equal orders; other data almost surely give another one."""
        if not self._digests:
            self._digests.append(self._digest())
        return self._digests[0]

    def _digest(self) -> str:
        head = [_FORMAT, [[bucket.size, bucket.samples] for bucket in self.buckets]]
        digest = hashlib.blake2b(json.dumps(head).encode(), digest_size=16)
        if self.members is not None:
            for begin in range(0, len(self.members), _BLOCK):
                digest.update(self.members[begin : begin + _BLOCK].astype("<i8", copy=False).data)
                if self.scores is not None and len(self.buckets) > 1:
                    # They decide which bucket's step comes next.
                    scores = self.scores[self.members[begin : begin + _BLOCK]]
                    digest.update(scores.astype("<f8", copy=False).data)
        return digest.hexdigest()


Sizes = Sequence[int] | NDArray[np.integer[Any]]


def plan_buckets(
    sizes: Sizes | None,
    num_samples: int,
    wanted: Callable[[int], bool] | None = None,
    *,
    rule: BucketRule | None = None,
    index: Path | None = None,
    label: str = "",
) -> BucketPlan:
    """Samples by size (those wanted); without sizes, or with `single`, one bucket of all.

    A large index lies in a nameless file in the folder `index`, if one is given.
    """
    rule = rule or BucketRule()
    if num_samples < 1:
        raise DataError("there are no samples", hint="check the path and the split of the data")
    if sizes is None:
        if wanted is not None:
            raise DataError(
                "the stage asks for certain sizes, but the data do not say how large a sample is",
                hint="give the data a size per sample (`n`, or `sample_sizes`), or drop `size:`",
            )
        return BucketPlan(buckets=(Bucket(None, num_samples),), members=None)
    values, counts = count_sizes(sizes, num_samples)
    keep = np.array([wanted is None or wanted(size) for size in values.tolist()], dtype=bool)
    if not keep.any():
        what = f"size {label}" if label else "a wanted size"
        raise DataError(
            f"no sample has {what}; the sizes that exist are {_in_words(values, counts)}",
            hint="choose among these sizes",
        )
    uppers, waste = _choose_uppers(values[keep], counts[keep], rule)
    of_value = np.where(keep, np.searchsorted(uppers, values), -1)
    samples = np.bincount(of_value[keep], weights=counts[keep], minlength=len(uppers))
    present = np.flatnonzero(samples)
    of_value[keep] = np.searchsorted(present, of_value[keep])
    is_single = rule.kind == "single"
    buckets = tuple(Bucket(None if is_single else int(uppers[b]), int(samples[b])) for b in present)
    members = _members(sizes, values, of_value, [b.samples for b in buckets], index)
    return BucketPlan(buckets=buckets, members=members, waste=waste)


def sort_by_score(
    plan: BucketPlan, scores: Sequence[float] | NDArray[Any], *, index: Path | None = None
) -> BucketPlan:
    """The same buckets with their samples in ascending score, as `order: score` wants them."""
    found = np.asarray(scores, dtype=np.float64)
    if found.ndim != 1 or not np.isfinite(found).all():
        raise DataError(
            "scores must be one finite number per sample", hint="look at what gives the scores"
        )
    members = _make_index(plan.num_samples, index)
    begin = 0
    for bucket, _ in enumerate(plan.buckets):
        own = plan.index(bucket)
        own = np.arange(plan.num_samples, dtype=np.int64) if own is None else np.asarray(own)
        if own.max() >= len(found):
            raise DataError(
                f"there are {len(found)} scores for at least {own.max() + 1} samples",
                hint="give exactly one score per sample",
            )
        members[begin : begin + len(own)] = own[np.argsort(found[own], kind="stable")]
        begin += len(own)
    return BucketPlan(buckets=plan.buckets, members=members, waste=plan.waste, scores=found)


def count_sizes(sizes: Sizes, num_samples: int) -> tuple[Ints, Ints]:
    """(the distinct sizes, ascending; how many samples have each), block by block."""
    values = np.empty(0, dtype=np.int64)
    counts = np.empty(0, dtype=np.int64)
    for block in _blocks(sizes, num_samples):
        more, how_many = np.unique(block, return_counts=True)
        merged, place = np.unique(np.concatenate([values, more]), return_inverse=True)
        added = np.zeros(len(merged), dtype=np.int64)
        np.add.at(added, place, np.concatenate([counts, how_many]))
        values, counts = merged, added
    return values, counts


def _choose_uppers(values: Ints, counts: Ints, rule: BucketRule) -> tuple[Ints, float]:
    """The largest size of each bucket, ascending, and the share of padding."""
    kind = rule.kind
    if kind == "default":
        kind = "exact" if len(values) <= FEW_SIZES else "auto"
    if kind == "exact":
        return values, 0.0
    if kind == "single":
        return values[-1:], 0.0
    if kind == "auto":
        found = best_boundaries(
            values.tolist(), counts.tolist(), buckets=rule.count, power=rule.power
        )
        return np.array(found.uppers, dtype=np.int64), found.waste
    uppers = np.array(sorted(rule.uppers), dtype=np.int64)
    if values[-1] > uppers[-1]:
        beyond = int(counts[values > uppers[-1]].sum())
        raise DataError(
            f"{beyond} samples are larger than the last bucket boundary {uppers[-1]}, the largest "
            f"of size {values[-1]}",
            hint=f"add a boundary of at least {values[-1]} to `buckets`, or restrict `size`",
        )
    waste = waste_of(values.tolist(), counts.tolist(), uppers.tolist(), power=rule.power)
    return uppers, waste


def _blocks(sizes: Sizes, num_samples: int) -> Iterator[Ints]:
    """Checked sizes, some at a time: never all of a large data set."""
    if len(sizes) != num_samples:
        raise DataError(
            f"{num_samples} samples need {num_samples} sizes, but there are {len(sizes)}",
            hint="give exactly one size per sample",
        )
    for begin in range(0, num_samples, _BLOCK):
        yield _checked(np.asarray(sizes[begin : begin + _BLOCK]))


def _checked(array: NDArray[Any]) -> Ints:
    if array.ndim != 1:
        raise DataError(
            f"sizes have the shape {array.shape} per block: one whole number per sample is needed",
            hint="give exactly one size per sample",
        )
    if array.dtype.kind not in "iu":
        raise DataError(
            f"sizes must be whole numbers, not {array.dtype}", hint="make them integers"
        )
    if array.min() < 0 or array.max() > np.iinfo(np.int64).max:
        raise DataError(f"sizes go from {array.min()} to {array.max()}: not sizes of samples")
    return array.astype(np.int64, copy=False)


def _members(
    sizes: Sizes, values: Ints, of_value: Ints, samples: list[int], index: Path | None
) -> Ints | None:
    """Dataset indices bucket after bucket, ascending in each; None where that changes nothing."""
    if len(samples) == 1 and samples[0] == len(sizes):
        return None
    members = _make_index(sum(samples), index)
    ends = (np.cumsum(samples) - samples).tolist()
    first = 0
    for block in _blocks(sizes, len(sizes)):
        buckets = of_value[np.searchsorted(values, block)]
        order = np.argsort(buckets, kind="stable")
        places = np.searchsorted(buckets[order], np.arange(len(samples) + 1))
        for bucket, (begin, end) in enumerate(pairwise(places.tolist())):
            count = end - begin
            members[ends[bucket] : ends[bucket] + count] = order[begin:end] + first
            ends[bucket] += count
        first += len(block)
    return members


def _make_index(num_samples: int, folder: Path | None) -> Ints:
    """Without a name nothing is left behind, however the process ends."""
    if folder is None or num_samples <= LARGE:
        return np.empty(num_samples, dtype=np.int64)
    with tempfile.TemporaryFile(dir=folder) as file:
        return np.memmap(file, dtype=np.int64, mode="w+", shape=(num_samples,))


def _in_words(values: Ints, counts: Ints) -> str:
    named = [
        f"{size} ({samples} samples)"
        for size, samples in zip(values[:_NAMED_SIZES], counts[:_NAMED_SIZES], strict=True)
    ]
    more = len(values) - len(named)
    return ", ".join(named) + (f" and {more} more, up to {values[-1]}" if more > 0 else "")
