"""What a run has cost so far: GPU-hours that its attempts held, times their price. Pure.

Counted is what was allocated, not what was used: an attempt that starts, saves or is done again
costs as much as one that steps. Where the CPU computes, each slot that `gpus` counts is one GPU.
Time in the queue costs nothing; what a scheduler does before and after an attempt is not seen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tasuki.runs.ledger import is_complete, read_attempts

_HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class Spent:
    gpu_hours: float | None
    cost: float | None
    """In whatever the price is written in; None: not known."""

    def as_json(self) -> dict[str, float | None]:
        return {"gpu_hours": _rounded(self.gpu_hours), "cost": _rounded(self.cost)}


def add_up_spent(
    events: Sequence[dict[str, Any]], *, now: float | None, price: float | None
) -> Spent:
    """Over all attempts; `now` is the end of one that still goes on. Each has the price of its own
    job; `price` is for those whose job had none, because it was written later."""
    hours = cost = 0.0
    attempts = read_attempts(events, None if is_complete(events) else now)
    is_priced = bool(attempts) or price is not None
    for attempt in attempts:
        if not isinstance(attempt.gpus, int):
            return Spent(None, None)
        own = attempt.price_per_gpu_hour if attempt.price_per_gpu_hour is not None else price
        gpu_hours = max(0.0, attempt.end - attempt.begin) / _HOUR_S * attempt.gpus
        hours += gpu_hours
        is_priced &= own is not None
        cost += gpu_hours * (own or 0.0)
    return Spent(hours, cost if is_priced else None)


def price_of(spec: Mapping[str, Any]) -> float | None:
    """Of a GPU for an hour, from a run's `spec.json`."""
    price = (spec.get("cluster") or {}).get("price_per_gpu_hour")
    return None if price is None else float(price)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 6)
