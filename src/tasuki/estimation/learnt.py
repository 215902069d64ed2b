"""What finished stages teach about a kind of card: how far predictions were from what was. Pure.

Only where a line of history holds both, prediction and measurement. Of time a factor on the data
sheet (roofline.py), of memory a margin on what the card must hold (memory.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tasuki.estimation.memory import MARGIN
from tasuki.estimation.past import Past, read_pasts
from tasuki.estimation.roofline import Calibration, calibrate

LEAST_MARGIN = 0.02
COVERED = 0.95
"""Of the finished stages must have fitted into their prediction and the margin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Margin:
    """What is put on a prediction of memory, as a share of it."""

    share: float
    runs: int
    """It was learnt from so many."""

    @property
    def source(self) -> str:
        return f"learnt from {self.runs} run{'s' if self.runs > 1 else ''}"


def learn_calibration(history: Iterable[Mapping[str, Any]], *, gpu: str) -> Calibration:
    """How many times the data sheet's time steps take on this card; of the same work the newest
    counts, so that one stage that was run often does not speak for all."""
    pairs: dict[str, tuple[float, float]] = {}
    for past in reversed(_on(history, gpu)):  # the newest last
        bare = past.predicted.get("bare_step_s")
        if bare:
            pairs[past.key] = float(bare), past.step_s
    return calibrate(list(pairs.values()))


def learn_margin(history: Iterable[Mapping[str, Any]], *, gpu: str) -> Margin | None:
    """None: no stage on this card had both. The more there are, the closer to what they took."""
    excess = [over for past in _on(history, gpu) if (over := _excess(past)) is not None]
    if not excess:
        return None
    place = min(len(excess), math.ceil(COVERED * (len(excess) + 1)))
    unseen = MARGIN / math.sqrt(len(excess))  # few runs say little
    share = max(LEAST_MARGIN, sorted(excess)[place - 1], unseen)
    return Margin(share=round(share, 4), runs=len(excess))


def _on(history: Iterable[Mapping[str, Any]], gpu: str) -> list[Past]:
    return [past for past in read_pasts(history) if past.gpu and past.may_be_of(gpu)]


def _excess(past: Past) -> float | None:
    """How much more was taken from the card than predicted, as a share."""
    predicted = past.predicted.get("reserved_bytes")
    if not predicted or not past.reserved_bytes:
        return None
    return past.reserved_bytes / float(predicted) - 1.0
