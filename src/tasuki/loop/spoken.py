"""The newest line of metrics as a line of the log: for who reads along, so seldom.

All lines are in the run's metrics. Asked by whoever writes those, a recipe's training or a loop of
one's own, on rank 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

_OFTEN_S = 10.0
_SELDOM_S = 60.0
_OFTEN_FOR_S = 60.0
_MOST_NUMBERS = 4


class Spoken:
    """Of one stage in one attempt."""

    def __init__(self, say: Callable[[str], None], *, total_steps: int | None, now: float) -> None:
        self._say, self._total = say, total_steps
        self._began_at = self._due_at = now

    def tell(self, at: Mapping[str, Any], values: Mapping[str, Any], *, now: float) -> None:
        """`at`: epoch and step; the last one of a stage is always said."""
        if now < self._due_at and (self._total is None or at["step"] < self._total):
            return
        shown = {"loss": values["loss"]} if "loss" in values else dict(values)
        numbers = [f"{name} {_short(value)}" for name, value in shown.items()][:_MOST_NUMBERS]
        if not numbers:
            return
        self._due_at = now + (_OFTEN_S if now - self._began_at < _OFTEN_FOR_S else _SELDOM_S)
        total = "" if self._total is None else f" of {self._total:,}"
        where = f"Step {at['step']:,}{total} (epoch {at['epoch']})"
        self._say(f"{where}: {', '.join(numbers)}")


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)[:40]
