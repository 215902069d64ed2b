"""Put the samples of a stage into buckets of one size each.

Pure: sizes come in as numbers. Called by the loader and by `inspect`; order.py draws each step from
one bucket. Which micro-batch a bucket gets is not decided here.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from tasuki.errors import DataError

_FORMAT = 1
_NAMED_SIZES = 20
"""An error names at most so many sizes."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """Samples of one size class; a size of None means that sizes are unknown."""

    size: int | None
    samples: int

    def __post_init__(self) -> None:
        assert self.samples > 0, self


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BucketPlan:
    """The buckets of a stage in ascending size, and which samples belong to which."""

    buckets: tuple[Bucket, ...]
    members: NDArray[np.int64] | None
    """Dataset indices bucket after bucket, ascending in each; None: sample i is number i."""

    def __post_init__(self) -> None:
        sizes = [bucket.size for bucket in self.buckets if bucket.size is not None]
        assert len(sizes) == len(self.buckets) or len(self.buckets) == 1, sizes
        assert all(low < high for low, high in pairwise(sizes)), sizes
        assert self.members is None or len(self.members) == self.num_samples

    @property
    def num_samples(self) -> int:
        """Samples in all buckets: those that the filter left."""
        return sum(bucket.samples for bucket in self.buckets)

    def index(self, bucket: int) -> NDArray[np.int64] | None:
        """Dataset indices of a bucket's samples, ascending; None: 0, 1, 2, … (nothing is kept)."""
        if self.members is None:
            return None
        start = sum(earlier.samples for earlier in self.buckets[:bucket])
        return self.members[start : start + self.buckets[bucket].samples]

    def fingerprint(self) -> str:
        """Equal fingerprints give equal orders; other data almost surely give another one."""
        head = [_FORMAT, [[bucket.size, bucket.samples] for bucket in self.buckets]]
        digest = hashlib.blake2b(json.dumps(head).encode(), digest_size=16)
        if self.members is not None:
            digest.update(self.members.astype("<i8", copy=False).data)
        return digest.hexdigest()


def plan_buckets(
    sizes: Sequence[int] | NDArray[np.integer] | None,
    num_samples: int,
    wanted: Callable[[int], bool] | None = None,
) -> BucketPlan:
    """One bucket per size that occurs (and is wanted); without sizes one bucket of all samples."""
    if num_samples < 1:
        raise DataError("there are no samples", hint="check the path and the split of the data")
    if sizes is None:
        if wanted is not None:
            raise DataError(
                "the stage asks for certain sizes, but the data do not say how large a sample is",
                hint="give the data a size per sample (`n`, or `sample_sizes`), or drop `size:`",
            )
        return BucketPlan(buckets=(Bucket(None, num_samples),), members=None)
    checked = _checked_sizes(sizes, num_samples)
    values, counts = np.unique(checked, return_counts=True)
    keep = np.array([wanted is None or wanted(size) for size in values.tolist()], dtype=bool)
    if not keep.any():
        raise DataError(
            f"no sample has a wanted size; the sizes that exist are {_in_words(values, counts)}",
            hint="choose among these sizes",
        )
    kept = zip(values[keep].tolist(), counts[keep].tolist(), strict=True)
    buckets = tuple(Bucket(size, samples) for size, samples in kept)
    return BucketPlan(buckets=buckets, members=_members(checked, values[keep]))


def _checked_sizes(
    sizes: Sequence[int] | NDArray[np.integer], num_samples: int
) -> NDArray[np.int64]:
    array = np.asarray(sizes)
    if array.shape != (num_samples,):
        raise DataError(
            f"{num_samples} samples need {num_samples} sizes, but there are {array.size}"
            + (f" in the shape {array.shape}" if array.ndim != 1 else ""),
            hint="give exactly one size per sample",
        )
    if array.dtype.kind not in "iu":
        raise DataError(
            f"sizes must be whole numbers, not {array.dtype}", hint="make them integers"
        )
    if array.min() < 0 or array.max() > np.iinfo(np.int64).max:
        raise DataError(f"sizes go from {array.min()} to {array.max()}: not sizes of samples")
    return array.astype(np.int64, copy=False)


def _members(sizes: NDArray[np.int64], kept: NDArray[np.int64]) -> NDArray[np.int64] | None:
    chosen = np.flatnonzero(np.isin(sizes, kept))
    if len(kept) == 1:
        return None if len(chosen) == len(sizes) else chosen
    return chosen[np.argsort(sizes[chosen], kind="stable")]


def _in_words(values: NDArray[np.int64], counts: NDArray[np.int64]) -> str:
    named = [
        f"{size} ({samples} samples)"
        for size, samples in zip(values[:_NAMED_SIZES], counts[:_NAMED_SIZES], strict=True)
    ]
    more = len(values) - len(named)
    return ", ".join(named) + (f" and {more} more, up to {values[-1]}" if more > 0 else "")
