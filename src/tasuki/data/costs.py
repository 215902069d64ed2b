"""What a sample costs, where the number of samples does not tell: `cost: nodes+edges`.

Costs only split a step into micro-batches (split.py); they never decide which samples it takes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from tasuki.errors import DataError
from tasuki.spec.buckets import parse_cost
from tasuki.spec.values import LARGEST_COUNT

Counts = Callable[[str], "Sequence[int] | NDArray[np.integer]"]
"""A number per sample, by name."""


def cost_parts(cost: str, counts: Counts) -> list[NDArray[np.int64]]:
    """What the costs are made of: nodes, edges."""
    names = dict.fromkeys(term.name for term in parse_cost(cost))
    return [np.asarray(counts(name)).astype(np.int64) for name in names]


def sample_costs(cost: str, counts: Counts, num_samples: int) -> NDArray[np.int64]:
    """The cost of every sample, as the spec's expression says."""
    total = np.zeros(num_samples, dtype=np.int64)
    largest = 0
    for term in parse_cost(cost):
        numbers = np.asarray(counts(term.name))
        if numbers.shape != (num_samples,) or numbers.dtype.kind not in "iu":
            raise DataError(
                f"`{term.name}` of `cost: {cost}` is no whole number per sample "
                f"({numbers.dtype} in the shape {numbers.shape} for {num_samples} samples)",
                hint="give one count per sample",
            )
        largest += term.factor * int(numbers.max()) ** term.power
        if numbers.min() < 0:
            raise DataError(
                f"`{term.name}` of `cost: {cost}` is {numbers.min()} for sample "
                f"{int(numbers.argmin())}",
                hint="give one count per sample",
            )
        if largest > LARGEST_COUNT:
            raise DataError(
                f"`cost: {cost}` reaches {largest:.3g}: too large to be added up exactly",
                hint="take a smaller power, or a smaller factor",
            )
        total += term.factor * numbers.astype(np.int64) ** term.power
    return total
