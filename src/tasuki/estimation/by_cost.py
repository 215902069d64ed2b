"""What a card must hold for a micro-batch of a cost, and the largest budget that fits it.

Pure: from the two probes that memory/by_cost.py makes, of the dearest samples and of even
ones; the worse counts. The dearest sample goes alone where it is over the budget, so that no budget
takes less than it. Used by fitted.py and by the batch tuner.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tasuki.estimation.accumulated import accumulated
from tasuki.estimation.memory import Beside, Largest, Needs, largest_batch, needs_of
from tasuki.estimation.probes import Probe

MOST_COST = 1 << 40
"""Where memory does not grow with what is computed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostProbes:
    """Of one stage."""

    large: Probe
    small: Probe
    dearest: int
    """What the dearest sample costs."""

    def accumulated(self) -> CostProbes:
        """Several micro-batches make a step."""
        return replace(self, large=accumulated(self.large), small=accumulated(self.small))

    def needs(self, budget: int, *, beside: Beside) -> Needs:
        """Of the worse of both."""
        large = needs_of(self.large, batch=max(budget, self.dearest), beside=beside)
        small = needs_of(self.small, batch=budget, beside=beside)
        return max(large, small, key=lambda needs: needs.peak_bytes)

    def largest(self, *, capacity: int, beside: Beside) -> Largest:
        """The largest budget that fits; 0: the dearest sample does not fit, not even alone."""
        large, small = (
            largest_batch(probe, capacity=capacity, beside=beside, most=MOST_COST).batch
            for probe in (self.large, self.small)
        )
        alone = needs_of(self.large, batch=self.dearest, beside=beside)
        if alone.peak_bytes > capacity:
            return Largest(batch=0, needs=alone, missing_bytes=alone.peak_bytes - capacity)
        budget = max(1, min(max(large, self.dearest), small))
        return Largest(batch=budget, needs=self.needs(budget, beside=beside))
