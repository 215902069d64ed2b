"""The order of samples that all have one size: that of a custom loop.

Pure. It depends only on values in every checkpoint of such a loop, so `tasuki verify samples` needs
neither the script nor its data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasuki.data.buckets import plan_buckets, sort_by_score
from tasuki.data.order import Order
from tasuki.errors import DataError

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainOrder:
    """From which the order follows."""

    samples: int
    effective_batch: int
    shuffle: bool
    seed: int
    stage: str
    gathered: int = 1
    """Batches whose gradients make one step; the last of an epoch may have fewer."""

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

    def steps(self) -> Order | Gathered:
        """Of the optimizer."""
        return self.build() if self.gathered == 1 else Gathered(self.build(), self.gathered)

    def as_json(self) -> dict[str, Any]:
        plain = asdict(self)
        if self.gathered == 1:
            del plain["gathered"]
        return plain

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> PlainOrder:
        try:
            return cls(**value)
        except TypeError as error:
            raise DataError(f"no description of an order: {str(value)[:80]}") from error


class Gathered:
    """Steps of several batches each, for the check of samples.

    A larger effective batch would be another order: it moves the smaller batch of an epoch.
    """

    def __init__(self, order: Order, num: int) -> None:
        self._order, self._num = order, num
        self.plan = order.plan
        self.samples_per_epoch = order.samples_per_epoch
        self.effective_batch = order.effective_batch * num
        self.steps_per_epoch = -(-order.steps_per_epoch // num)

    def steps(self, epoch: int, first: int, stop: int) -> tuple[Ints, Ints]:
        last = min(stop * self._num, self._order.steps_per_epoch)
        ids, counts = self._order.steps(epoch, first * self._num, last)
        return ids, np.add.reduceat(counts, np.arange(0, len(counts), self._num))
