"""The largest batch that fits, found with few tries on the real device.

Pure: from what was predicted and what the tries so far measured follows which batch to try next, or
that nothing more is to be learnt. A prediction is corrected by what was measured, and where there
is none, peaks are joined by lines. Whoever tries is memory/batch_probe.py; running out of memory is
an answer, not an error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tasuki.estimation.memory import largest_by

Predict = Callable[[int], int]
"""Bytes at the peak of a step with micro-batches of so many samples (or of such a cost)."""

MOST_TRIES = 4
_LESS = (0.93, 0.6, 0.3)
"""Of the memory, after so many tries that did not fit and none that did: a trace does not see what
libraries take, which is little; then the trace itself is in doubt."""
_STEEPEST = 2.0
"""Of what was measured over what was predicted, between two tries."""
_FAR_OFF = 1.05
_FARTHEST, _FARTHEST_AT_LAST = 8, 4
"""Times the largest batch that has fitted: where there is no prediction, lines run low."""
_LAST = 0.97
"""Of the memory, for the last try after one that did not fit: now it has to."""


@dataclass(frozen=True, slots=True)
class Tried:
    """One micro-batch on the device."""

    batch: int
    peak_bytes: int | None
    """None: it did not fit."""


@dataclass(frozen=True, slots=True)
class Correction:
    """measured = slope × predicted + offset."""

    slope: float = 1.0
    offset: float = 0.0

    def __call__(self, predicted: int) -> float:
        return self.slope * predicted + self.offset


def largest_fitting(tried: Sequence[Tried]) -> int:
    """0: none has fitted."""
    return max((one.batch for one in tried if one.peak_bytes is not None), default=0)


def next_try(
    tried: Sequence[Tried],
    *,
    predict: Predict | None,
    capacity: int,
    most: int,
    first: int = 1,
    apart: int = 1,
) -> int | None:
    """The batch to try now; None: the largest that fits is known as well as it will be. Without a
    prediction `first` is tried first; nothing nearer than `apart` is worth a try."""
    low, high = largest_fitting(tried), _smallest_failing(tried, most)
    if len(tried) >= MOST_TRIES or low >= high - apart:
        return None
    if predict is None:
        guess = _by_peaks(tried, capacity=capacity, low=low, high=high, first=first)
    else:
        guess = _by_prediction(tried, predict, capacity=capacity, high=high)
    return guess if (low == 0 or low + apart <= guess) and 0 < guess < high else None


def correction_of(measured: Sequence[tuple[int, int]]) -> Correction:
    """Of pairs (predicted, measured). One tells what lies there beside a step, or, where it is far
    off, by how much the prediction is; two, how what is predicted grows."""
    pairs = sorted(set(measured))[-2:]
    if not pairs:
        return Correction()
    (first, was), (last, now) = pairs[0], pairs[-1]
    slope = 1.0
    if last > first:
        slope = min(_STEEPEST, max(1 / _STEEPEST, (now - was) / (last - first)))
    elif now > _FAR_OFF * last:
        slope = now / max(1, last)
    return Correction(slope, now - slope * last)


def _smallest_failing(tried: Sequence[Tried], most: int) -> int:
    return min([most + 1, *(one.batch for one in tried if one.peak_bytes is None)])


def _by_prediction(tried: Sequence[Tried], predict: Predict, *, capacity: int, high: int) -> int:
    fitted = [(predict(one.batch), one.peak_bytes) for one in tried if one.peak_bytes is not None]
    room: float = capacity
    if tried and not fitted:
        room *= _LESS[min(len(tried), len(_LESS)) - 1]
    elif len(tried) == MOST_TRIES - 1 and len(fitted) < len(tried):
        room *= _LAST
    corrected = correction_of(fitted)
    if fitted and _is_refuted(tried, lambda batch: corrected(predict(batch)) <= room, high=high):
        return _between(largest_fitting(tried), high)
    guess = largest_by(lambda batch: corrected(predict(batch)) <= room, most=high - 1)
    if tried and not fitted:
        # Weights alone may take more than that share: a last try of one sample tells nothing.
        return max(guess, high // 2)
    return guess or 1


def _is_refuted(tried: Sequence[Tried], fits: Callable[[int], bool], *, high: int) -> bool:
    """What did not fit should have, and by a prediction that knows what was measured: the next
    smaller batch, which it would say now, is no better."""
    return any(one.batch == high for one in tried) and fits(high)


def _between(low: int, high: int) -> int:
    return max(low + 1, int((low * high) ** 0.5))


def _by_peaks(tried: Sequence[Tried], *, capacity: int, low: int, high: int, first: int) -> int:
    """One sample first; then as many as must fit, since peaks grow no faster than the batch; then
    along the line through the last two peaks, which runs low: peaks bend upwards."""
    fitted = sorted((one.batch, one.peak_bytes) for one in tried if one.peak_bytes is not None)
    if not fitted:
        return min(first, high - 1)
    if len(fitted) == 1:
        return min(high - 1, first * max(2, capacity // max(1, fitted[0][1] or 0)))
    if any(one.peak_bytes is None for one in tried):
        return _between(low, high)
    (before, was), (last, now) = fitted[-2:]
    assert was is not None and now is not None
    grows = (now - was) / (last - before)
    more = (capacity - now) / grows if grows > 0 else high
    times = _FARTHEST if len(tried) < MOST_TRIES - 1 else _FARTHEST_AT_LAST
    return int(min(high - 1, times * last, last + more))
