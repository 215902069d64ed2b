"""By how much a peak may exceed its prediction: a bound that the next one stays under with 95 %.

Pure. Split conformal prediction: of n ratios measured/predicted of the same kind, the ⌈(n + 1) ×
0.95⌉-th smallest bounds the next one with that probability, whatever their distribution, if the
next is drawn as they were. That takes 19 of them. With fewer, ranks alone promise nothing: then it
is the largest one with an assumed margin on it, which shrinks as they become more. Asked by
factor.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tasuki.estimation.memory import MARGIN

COVERAGE = 0.95
ENOUGH = math.ceil(COVERAGE / (1 - COVERAGE) - 1e-9)
"""Ratios from which ranks alone bound the next: 19."""
_NEWEST = 200
"""Older ones tell of other versions of everything."""
_STRANGEST = 10.0
"""A ratio beyond this, or below its inverse, is no measurement of what was predicted."""


def bound_of(ratios: Sequence[float], *, coverage: float = COVERAGE) -> float:
    """The ratio that the next measurement exceeds with a probability of 1 - coverage at most."""
    known = sorted(ratio for ratio in ratios[-_NEWEST:] if is_ratio(ratio))
    if not known:
        return 1.0 + MARGIN
    rank = math.ceil((len(known) + 1) * coverage - 1e-9)
    if rank <= len(known):
        return known[rank - 1]
    missing = max(0.0, 1.0 - len(known) / ENOUGH)
    return known[-1] * (1.0 + MARGIN * missing)


def is_ratio(value: object) -> bool:
    """Torn and foreign figures are left out."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and 1 / _STRANGEST <= value <= _STRANGEST  # type: ignore[operator]


def ratios_in(lines: Iterable[Mapping[str, Any]], *, recipe: str, gpu: str) -> list[float]:
    """Of past stages with a recipe on a type of GPU: where a line of the history tells what was
    predicted and what was measured for a bucket."""
    found: list[float] = []
    for line in lines:
        device = line.get("device")
        on = line.get("device_model") if device == "cuda" else device
        if line.get("recipe") == recipe and on == gpu:
            found += _ratios_of(line.get("buckets"))
    return found[-_NEWEST:]


def _ratios_of(buckets: object) -> Iterable[float]:
    for bucket in buckets if isinstance(buckets, list) else ():
        if not isinstance(bucket, Mapping):
            continue
        peak, predicted = bucket.get("peak_bytes"), bucket.get("predicted_bytes")
        if not isinstance(peak, int) or not isinstance(predicted, int) or predicted <= 0:
            continue
        if is_ratio(peak / predicted):
            yield peak / predicted
