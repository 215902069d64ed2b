"""At epoch borders the peaks of training count, and nothing else's."""

from __future__ import annotations

from types import SimpleNamespace

import torch

from tasuki.testing import memory_cap
from tasuki.train.borders import Borders

KIB = 1 << 10


def take(num_bytes: int) -> None:
    torch.zeros(num_bytes, dtype=torch.uint8)


def test_a_validation_neither_adds_to_the_peak_of_training_nor_hides_it() -> None:
    with memory_cap("1M"):
        task = SimpleNamespace(device=torch.device("cpu"))
        borders = Borders(task, steps_per_epoch=5, is_adaptive=True)  # type: ignore[arg-type]
        take(700 * KIB)
        borders.begin(0)
        take(100 * KIB)
        kept: list[int] = []
        with borders.apart(lambda: kept.append(borders.peak_bytes() // KIB)):
            take(300 * KIB)
        assert borders.peak_bytes() == 100 * KIB, "not 300, and not 0"
        assert kept == [100, 300]
        take(150 * KIB)
        assert borders.peak_bytes() == 150 * KIB
    plain = Borders(task, steps_per_epoch=5, is_adaptive=False)  # type: ignore[arg-type]
    with plain.apart():
        assert plain.peak_bytes() == 0
