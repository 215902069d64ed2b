"""The order of samples that all have one size: what a loop of one's own gets, and an audit repeats.

Pure. What it hangs on stands in every checkpoint of such a loop, so that neither the script nor its
data are needed to make the order again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from tasuki.data.buckets import plan_buckets, sort_by_score
from tasuki.data.order import Order
from tasuki.errors import DataError


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainOrder:
    """From which the order follows."""

    samples: int
    effective_batch: int
    shuffle: bool
    seed: int
    stage: str

    def build(self) -> Order:
        plan = plan_buckets(None, self.samples)
        if not self.shuffle:
            plan = sort_by_score(plan, np.arange(self.samples, dtype=np.float64))
        return Order(
            plan,
            seed=self.seed,
            stage=self.stage,
            effective_batch=self.effective_batch,
            kind="shuffle" if self.shuffle else "score",
        )

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> PlainOrder:
        try:
            return cls(**value)
        except TypeError as error:
            raise DataError(f"no description of an order: {str(value)[:80]}") from error
