"""Data that draw from the global generators, and do nothing else with them."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from tasuki.data.fetch import Request

SEEDS = [1000 + i for i in range(40)]
DRAWS: dict[str, Callable[[], float]] = {
    "random": random.random,
    "random.gauss": lambda: random.gauss(0, 1),
    "numpy": lambda: float(np.random.rand()),
    "numpy.randn": lambda: float(np.random.randn()),
    "torch": lambda: float(torch.rand(())),
    "torch.randn": lambda: float(torch.randn(())),
}


class Data:
    """Each sample draws what `plan` says of its index."""

    def __init__(self, plan: dict[int, list[str]]) -> None:
        self.plan = plan
        self.fetched: list[int] = []

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> Tensor:
        self.fetched.append(index)
        numbers = [DRAWS[name]() for name in self.plan.get(index, [])]
        return torch.tensor([float(index), sum(numbers)], dtype=torch.float64)


def request(*indices: int) -> Request:
    return Request(list(indices), [SEEDS[i] for i in indices])


def collate_of_three(samples: list[Tensor]) -> list[float]:
    """Draws for batches of more than two samples."""
    return [float(sample[0]) + (random.random() if len(samples) > 2 else 0) for sample in samples]
