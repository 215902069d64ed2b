"""The safety factor: which share of the largest batch that fits is used, and how it moves.

Pure. It starts as the spec says. At epoch borders it rises, by a tenth at most, while the peaks
that were measured say that the next one fits (conformal.py); it falls after a surprise: a step that
ran out of memory, or a peak that nobody expected. It decides about micro-batches only; a step's
samples stay what they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from tasuki.estimation.conformal import bound_of
from tasuki.units import format_bytes

RISE = 0.1
"""At a border, at the most."""
FALL = 0.1
LEAST = 0.05
_GRID = 20
"""Factors are twentieths, but for the one in the spec."""

Point = tuple[int, int]
"""(micro-batch, bytes at its peak)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TunedBucket:
    """What the tuner found for a bucket."""

    bucket: int
    size: int | None
    share: int
    """Samples that a rank has of a step at the most; no micro-batch is larger."""
    found: int
    """The largest that fits; of those that are worth asking for. 0: not even one sample does."""
    curve: tuple[Point, ...]
    """Predicted peaks, ascending; between them lines, which run high: peaks bend upwards."""

    def safe(self, factor: float) -> int:
        """The micro-batch under a factor."""
        return find_safe_batch({"share": self.share, "found": self.found}, factor)

    def predicted(self, batch: int) -> float:
        """Bytes; beyond the last point along the last line."""
        if not self.curve:
            return 0.0
        lines = list(pairwise(self.curve)) or [(self.curve[0], self.curve[0])]
        for (low, least), (high, most) in lines:
            if batch <= high or (high, most) == self.curve[-1]:
                grows = (most - least) / (high - low) if high > low else 0.0
                return least + grows * (batch - low)
        raise AssertionError(self.curve)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """What the tuner found for a stage."""

    factor: float
    """As the spec says it."""
    capacity_bytes: int
    buckets: tuple[TunedBucket, ...]
    ratios: tuple[float, ...] = ()
    """measured/predicted: of past stages and of the tuner's own tries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shrunk:
    """A bucket ran out of memory."""

    bucket: int
    was: int
    """The micro-batch that did not fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Border:
    """What is known at the end of an epoch."""

    factor: float
    """In force."""
    in_use: Mapping[int, int]
    """The micro-batch of each bucket."""
    peak_bytes: int
    """The most of all ranks since the last border."""
    ratios: Sequence[float] = ()
    """Of all borders so far."""
    shrunk: Sequence[Shrunk] = ()
    """Since the stage began."""
    num_new: int = 0
    """So many of them since the last border."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What holds from a border on."""

    factor: float
    ratio: float | None
    """measured/predicted of the epoch; None: its peak is that of what did not fit."""
    predicted_bytes: int
    bound: float
    """What the next ratio stays under, very likely."""
    reason: str
    changes: Mapping[int, int] = field(default_factory=dict)
    """Bucket → its micro-batch, where it is another now."""


def decide(tuned: Tuned, border: Border) -> Decision:
    """Rise, stay or fall."""
    predicted = max(b.predicted(border.in_use[b.bucket]) for b in tuned.buckets)
    before = [*tuned.ratios, *border.ratios]
    ratio = None if border.num_new else border.peak_bytes / max(1.0, predicted)
    bound = bound_of(before if ratio is None else [*before, ratio])
    surprise = _surprise(border, expected_bytes=int(bound_of(before) * predicted))
    factor = _largest(tuned, border, bound)
    if surprise:
        factor = min(factor, _lower(border.factor))
    peak, capacity = format_bytes(border.peak_bytes), format_bytes(tuned.capacity_bytes)
    chosen = _micro_batches(tuned, border, factor)
    return Decision(
        factor=factor,
        ratio=ratio,
        predicted_bytes=round(predicted),
        bound=bound,
        reason=surprise or f"a peak of {peak} of {capacity}",
        changes={b: most for b, most in chosen.items() if most != border.in_use[b]},
    )


def _surprise(border: Border, *, expected_bytes: int) -> str:
    """In words; empty: there was none."""
    if border.num_new:
        return "out of memory since the last border"
    if border.peak_bytes > expected_bytes:
        peak, most = format_bytes(border.peak_bytes), format_bytes(expected_bytes)
        return f"a peak of {peak}, where {most} were expected at the most"
    return ""


def is_worth_it(tuned: Tuned) -> bool:
    """Where the factor leaves every bucket a rank's whole share, nothing is to be gained."""
    return any(b.safe(tuned.factor) < b.share for b in tuned.buckets)


def can_rise(tuned: Tuned, border: Border) -> bool:
    """Is there anything left to gain?"""
    return any(border.in_use[b.bucket] < _ceiling(b, border) for b in tuned.buckets)


def _lower(factor: float) -> float:
    return max(LEAST, round(factor - FALL, 4))


def _largest(tuned: Tuned, border: Border, bound: float) -> float:
    """The largest factor that is predicted to fit, with what may come on top."""
    highest = min(1.0, border.factor + RISE)
    steps = {n / _GRID for n in range(1, _GRID + 1)} | {border.factor}
    for factor in sorted((f for f in steps if f <= highest + 1e-9), reverse=True):
        chosen = _micro_batches(tuned, border, factor)
        peak = max(b.predicted(chosen[b.bucket]) for b in tuned.buckets)
        if peak * bound <= tuned.capacity_bytes:
            return factor
    return min(LEAST, border.factor)


def _micro_batches(tuned: Tuned, border: Border, factor: float) -> dict[int, int]:
    """Of each bucket: none rises by more than a tenth of what was found, or one sample."""
    chosen = {}
    for one in tuned.buckets:
        most = border.in_use[one.bucket] + max(1, int(one.found * RISE))
        chosen[one.bucket] = max(1, min(one.safe(factor), most, _ceiling(one, border)))
    return chosen


def _ceiling(bucket: TunedBucket, border: Border) -> int:
    """What has run out of memory once is not tried again."""
    failed = [one.was - 1 for one in border.shrunk if one.bucket == bucket.bucket]
    return max(1, min([bucket.share, max(1, bucket.found), *failed]))


# Buckets with lines of their own in the log; the larger ones.
_MAX_SHOWN = 4


def find_safe_batch(row: Mapping[str, Any], factor: float) -> int:
    """Return the micro-batch of a bucket as the tuner reports it, under a factor."""
    share: int = row["share"]
    return max(1, min(share, int(row["found"] * factor + 1e-9)))


def describe_batch_sizes(
    rows: list[dict[str, Any]], factor: float, *, capacity_bytes: int, cost: str | None = None
) -> Iterator[str]:
    """Three lines for each bucket, the largest first; people look for their beginnings."""
    if cost is not None:
        yield from _describe_budget(rows[0], factor, capacity_bytes=capacity_bytes, cost=cost)
        return
    shown = list(reversed(rows))
    for row in shown[:_MAX_SHOWN]:
        size = f" (size {row['size']})" if row["size"] is not None and len(rows) > 1 else ""
        found, final = row["found"], row["micro_batch"]
        if not found:
            yield (
                f"WARNING: batch size tuner: not even one sample{size} fits "
                f"{format_bytes(capacity_bytes)}"
            )
        enough = " or more" if row["is_bounded"] else ""
        whole = ", a rank's whole share of a step" if final == row["share"] else ""
        yield f"Batch size tuner found: {found}{enough}{size}"
        yield f"Applied {factor:.0%} safety factor: {found} × {factor:g}"
        yield f"Final safe batch size: {final}{whole}{size}"
    if len(shown) > _MAX_SHOWN:
        few, many = shown[-1]["micro_batch"], len(shown) - _MAX_SHOWN
        yield f"Batch sizes of {many} smaller sizes: up to {few}"


def _describe_budget(
    row: Mapping[str, Any], factor: float, *, capacity_bytes: int, cost: str
) -> Iterator[str]:
    found, final = row["found"], row["micro_batch"]
    if not found:
        room, needed = format_bytes(capacity_bytes), row["predicted_bytes"]
        by = f": {format_bytes(needed - capacity_bytes)} are missing" if needed else ""
        yield f"WARNING: batch size tuner: not even the dearest sample alone fits {room}{by}"
    enough = " or more" if row["is_bounded"] else ""
    whole = ", a rank's whole share of a step" if final == row["share"] else ""
    yield f"Batch size tuner found: cost {found:,}{enough} ({cost})"
    yield f"Applied {factor:.0%} safety factor: {found:,} × {factor:g}"
    yield f"Final safe batch size: cost {final:,} of a micro-batch{whole}"
