"""What the sizes of samples say: how many of each, how even they are, and what padding costs.

Pure: sizes and bytes come in block by block and are added up, so that no file is too large; memory
grows with the number of *distinct* sizes only. Batch sizes and memory on a GPU are not predicted
here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasuki.data.boundaries import best_boundaries

Ints = NDArray[np.int64]

FEW_SIZES = 20
"""Up to so many sizes are shown and trained one by one."""
NUM_LARGEST = 10
_NUM_LEFT_OUT = 5
_WIDE = 16
"""Where the largest size is so many times the smallest, and one even bin would hold more than half
of the samples, bins grow with the sizes."""
_MOST_BINS = 20
_MOST_WEIGHED = 4096
"""Among more sizes than these, boundaries are looked for at every k-th: a blink, not minutes."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One that is worth naming."""

    file: str | None
    index: int
    size: int
    bytes: int


def _no_numbers() -> Ints:
    return np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tally:
    """What was counted so far."""

    sizes: Ints = field(default_factory=_no_numbers)
    """Those that occur, ascending; `samples` and `bytes` belong to them, one by one."""
    samples: Ints = field(default_factory=_no_numbers)
    bytes: Ints = field(default_factory=_no_numbers)
    largest: tuple[Sample, ...] = ()
    """By size, then bytes; of equals the one that came first."""
    num_left_out: int = 0
    """Samples without a size of at least 1: they count nowhere else."""
    left_out: tuple[Sample, ...] = ()
    """The first of them."""

    @property
    def num_samples(self) -> int:
        return int(self.samples.sum())

    @property
    def num_bytes(self) -> int:
        return int(self.bytes.sum())

    def with_block(
        self, sizes: Ints, sample_bytes: Ints, *, file: str | None, first: int = 0
    ) -> Tally:
        """With the samples `first`, `first + 1`, … of a file, of these sizes and bytes."""
        places = np.arange(first, first + len(sizes))
        is_usable = sizes >= 1
        bad = np.flatnonzero(~is_usable)
        named = _named(file, places[bad], sizes[bad], sample_bytes[bad], _NUM_LEFT_OUT)
        if bad.size:
            places, sizes = places[is_usable], sizes[is_usable]
            sample_bytes = sample_bytes[is_usable]
        values, samples, total = _count(sizes, sample_bytes)
        return self.plus(
            Tally(
                sizes=values,
                samples=samples,
                bytes=total,
                largest=self._larger(file, places, sizes, sample_bytes),
                num_left_out=len(bad),
                left_out=named,
            )
        )

    def plus(self, other: Tally) -> Tally:
        """Both together, the other's samples coming later."""
        sizes, places = np.unique(np.concatenate([self.sizes, other.sizes]), return_inverse=True)
        added = np.zeros((2, len(sizes)), dtype=np.int64)
        np.add.at(added[0], places, np.concatenate([self.samples, other.samples]))
        np.add.at(added[1], places, np.concatenate([self.bytes, other.bytes]))
        ranked = sorted(self.largest + other.largest, key=lambda one: (-one.size, -one.bytes))
        return Tally(
            sizes=sizes,
            samples=added[0],
            bytes=added[1],
            largest=tuple(ranked[:NUM_LARGEST]),
            num_left_out=self.num_left_out + other.num_left_out,
            left_out=(self.left_out + other.left_out)[:_NUM_LEFT_OUT],
        )

    def _larger(
        self, file: str | None, places: Ints, sizes: Ints, sample_bytes: Ints
    ) -> tuple[Sample, ...]:
        """The largest of a block that may be among the largest of all."""
        chosen = np.arange(len(sizes))
        if len(self.largest) == NUM_LARGEST:
            least = self.largest[-1]
            is_larger = sizes > least.size
            is_larger |= (sizes == least.size) & (sample_bytes > least.bytes)
            chosen = np.flatnonzero(is_larger)
        if len(chosen) > NUM_LARGEST:
            least_size = np.partition(sizes[chosen], -NUM_LARGEST)[-NUM_LARGEST]
            chosen = chosen[sizes[chosen] >= least_size]
        chosen = chosen[np.lexsort((-sample_bytes[chosen], -sizes[chosen]))[:NUM_LARGEST]]
        return _named(file, places[chosen], sizes[chosen], sample_bytes[chosen], NUM_LARGEST)


def _count(sizes: Ints, sample_bytes: Ints) -> tuple[Ints, Ints, Ints]:
    """The sizes that occur, how often, and their bytes (sums below 2⁵³ are exact as floats)."""
    if not sizes.size:
        return sizes, sizes, sizes
    low = int(sizes.min())
    if int(sizes.max()) - low < 4 * len(sizes):  # counting is ten times as fast as sorting
        counts = np.bincount(sizes - low)
        values = np.flatnonzero(counts)
        total = np.bincount(sizes - low, weights=sample_bytes)[values]
        return values + low, counts[values], total.astype(np.int64)
    values, places, counts = np.unique(sizes, return_inverse=True, return_counts=True)
    return values, counts, np.bincount(places, weights=sample_bytes).astype(np.int64)


def _named(
    file: str | None, places: Ints, sizes: Ints, sample_bytes: Ints, most: int
) -> tuple[Sample, ...]:
    columns = (array[:most].tolist() for array in (places, sizes, sample_bytes))
    return tuple(Sample(file, *facts) for facts in zip(*columns, strict=True))


def describe(tally: Tally) -> dict[str, Any]:
    """The tally in the words of `--json`."""
    buckets = zip(tally.sizes.tolist(), tally.samples.tolist(), tally.bytes.tolist(), strict=True)
    return {
        "samples": tally.num_samples,
        "bytes": tally.num_bytes,
        "buckets": [{"size": s, "samples": n, "bytes": b} for s, n, b in buckets],
        "largest": [asdict(sample) for sample in tally.largest],
        "histogram": histogram(tally),
        "spread": spread(tally),
        "padding": padding(tally),
        "left_out": {
            "samples": tally.num_left_out,
            "first": [asdict(sample) for sample in tally.left_out],
        },
    }


def describe_without_sizes(num_samples: int, num_bytes: int | None) -> dict[str, Any]:
    """The same keys for data that do not say how large a sample is: one bucket."""
    return {
        "samples": num_samples,
        "bytes": num_bytes,
        "buckets": [{"size": None, "samples": num_samples, "bytes": num_bytes}],
        "largest": [],
        "histogram": [],
        "spread": None,
        "padding": None,
        "left_out": {"samples": 0, "first": []},
    }


def spread(tally: Tally) -> dict[str, Any]:
    """Where the sizes lie, and how even they are: 1 means that every size is equally frequent."""
    until = np.cumsum(tally.samples)
    shares = tally.samples / until[-1]
    entropy = -float((shares * np.log(shares)).sum())

    def quantile(share: float) -> int:
        """The smallest size that this share of the samples does not exceed."""
        return int(tally.sizes[np.searchsorted(until, share * until[-1])])

    return {
        "sizes": len(tally.sizes),
        "smallest": int(tally.sizes[0]),
        "median": quantile(0.5),
        "mean": float((shares * tally.sizes).sum()),
        "p90": quantile(0.9),
        "largest": int(tally.sizes[-1]),
        "evenness": entropy / float(np.log(len(shares))) if len(shares) > 1 else 1.0,
    }


def padding(tally: Tally) -> dict[str, Any]:
    """The share of padding: everything as large as the largest, exact sizes, or a few buckets."""
    uppers = choose_uppers(tally)
    return {
        "largest": _waste(tally, [int(tally.sizes[-1])]),
        "exact": 0.0,
        "auto": {"buckets": len(uppers), "uppers": uppers, "waste": _waste(tally, uppers)},
    }


def choose_uppers(tally: Tally) -> list[int]:
    """Upper sizes of as few buckets as keep the padding low."""
    step = -(-len(tally.sizes) // _MOST_WEIGHED)
    # The last of every group of sizes stands for the group: its samples are padded to it at most.
    starts = np.arange(0, len(tally.sizes), step)
    ends = np.minimum(starts + step, len(tally.sizes)) - 1
    samples = np.add.reduceat(tally.samples, starts)
    return list(best_boundaries(tally.sizes[ends].tolist(), samples.tolist()).uppers)


def _waste(tally: Tally, uppers: Sequence[int]) -> float:
    padded_to = np.asarray(uppers)[np.searchsorted(uppers, tally.sizes)]
    padded = float(np.dot(padded_to.astype(np.float64), tally.samples))
    return 1.0 - float(np.dot(tally.sizes.astype(np.float64), tally.samples)) / padded


def histogram(tally: Tally) -> list[dict[str, int]]:
    """A bin per size where there are few; else ranges of sizes, empty ones too."""
    sizes = tally.sizes.tolist()
    if len(sizes) <= FEW_SIZES:
        return _bins(tally, sizes, sizes)
    low, high = sizes[0], sizes[-1]
    found = _ranges(tally, _even(low, high))
    if high >= _WIDE * low and max(one["samples"] for one in found) > tally.num_samples / 2:
        return _ranges(tally, _growing(low, high))
    return found


def _ranges(tally: Tally, edges: Sequence[int]) -> list[dict[str, int]]:
    """Bins that end with each of the edges."""
    low, high = int(tally.sizes[0]), int(tally.sizes[-1])
    uppers = [*(edge for edge in edges if low <= edge < high), high]
    return _bins(tally, [low, *(upper + 1 for upper in uppers[:-1])], uppers)


def _bins(tally: Tally, lows: Sequence[int], uppers: Sequence[int]) -> list[dict[str, int]]:
    bins = np.searchsorted(uppers, tally.sizes)
    samples = np.bincount(bins, weights=tally.samples, minlength=len(uppers))
    total = np.bincount(bins, weights=tally.bytes, minlength=len(uppers))
    return [
        {"low": low, "high": high, "samples": int(n), "bytes": int(b)}
        for low, high, n, b in zip(lows, uppers, samples, total, strict=True)
    ]


def _growing(low: int, high: int) -> list[int]:
    """…, 256, 384, 512, 768, 1024: twice as wide from octave to octave."""
    powers = [1 << octave for octave in range(low.bit_length() - 1, high.bit_length() + 1)]
    if len(powers) <= _MOST_BINS // 2:
        return sorted({*powers, *(3 * power // 2 for power in powers)})
    return powers[:: -(-len(powers) // _MOST_BINS)]


def _even(low: int, high: int) -> list[int]:
    """…, 300, 400, 500: as many as a person can look at."""
    step = 1
    while (high - low) / step > _MOST_BINS - 2:
        # 1, 2, 5, 10, 20, 50, …
        step = step * 5 // 2 if str(step)[0] == "2" else step * 2
    return list(range(low // step * step, high, step))
