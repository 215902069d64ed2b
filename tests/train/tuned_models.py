"""Recipes whose largest batch under a cap is looked for, and the truth: by trying every batch.

Work of the tuner's child, done in a fork (tests/harness/errands.py).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from tests.train.probe import models
from torch.utils.data import Dataset

from tasuki.answers import Told
from tasuki.data.loader import MicroBatch
from tasuki.spec.resolved import stage_from_plain
from tasuki.testing.memory import VARIABLE, memory_cap
from tasuki.train import batch_size
from tasuki.train.advice import is_out_of_memory
from tasuki.train.assemble import assemble, make_engine
from tasuki.train.ranks import ALONE
from tasuki.train.recipe import load_recipe

ROOT = Path(__file__).resolve().parents[2]
CPU = torch.device("cpu")


class Numbers(Dataset[int]):
    """Sample i is its size."""

    def __init__(self, sizes: list[int]) -> None:
        self.sizes = sizes

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, i: int) -> int:
        return self.sizes[i]


class _Sized:
    """Made by `batch(number, size)` of a model of the probe's own tests."""

    sizes = (0,)
    samples = 600

    def build_dataset(self, source: str, split: str) -> Any:
        num = self.samples // len(self.sizes)
        return Numbers([size for size in self.sizes for _ in range(num)])

    def sample_sizes(self, dataset: Any) -> Any:
        return dataset.sizes if len(self.sizes) > 1 else None

    def collate(self, samples: list[int]) -> Any:
        largest = max(samples)
        return self.batch(len(samples), *([largest] if largest else []))  # type: ignore[attr-defined]


class Mlp(_Sized, models.Mlp):
    pass


class Convolutions(_Sized, models.Convolutions):
    pass


class Graphs(_Sized, models.Graphs):
    pass


class Gpt(_Sized, models.Gpt):
    sizes = (16, 32, 48)


class Branching(_Sized, models.Mlp):
    """Numbers leave torch: no trace can follow."""

    def loss(self, model: Any, batch: Any) -> Any:
        loss = super().loss(model, batch)
        return loss if float(loss.detach().numpy()) < 1e9 else loss * 2


def plain(recipe: str, **keys: Any) -> dict[str, Any]:
    return {"name": "a", "recipe": f"tests.train.tuned_models:{recipe}", "fused": False, **keys}


def tune(recipe: str, cap: str, *, is_bounded: bool = True, **keys: Any) -> dict[str, Any]:
    """The answer of the tuner's child."""
    os.environ[VARIABLE] = cap
    order = {
        "stage": plain(recipe, **keys),
        "paths": [str(ROOT)],
        "device": "cpu",
        "ranks": 1,
        "threads": 1,
        "is_bounded": is_bounded,
        "parent": None,
    }
    with Path(os.devnull).open("wb") as nobody:
        return batch_size.work(order, Told(nobody.fileno()))


def truth(recipe: str, cap: str, *, size: int, near: int, **keys: Any) -> int:
    """The largest batch of steps with two micro-batches that fits, among those near."""
    fitting = [n for n in range(max(1, near - 3), near + 4) if _fits(recipe, cap, n, size, keys)]
    assert fitting != list(range(max(1, near - 3), near + 4)), "larger ones fit, too"
    return max(fitting, default=0)


def _fits(recipe: str, cap: str, num: int, size: int, keys: dict[str, Any]) -> bool:
    stage = stage_from_plain(plain(recipe, **keys))
    made = load_recipe(str(stage.recipe), {}, paths=[ROOT])
    with memory_cap(cap):
        parts = assemble(made, stage, device=CPU, total_steps=9, say=str)
        engine = make_engine(made, stage, parts, ranks=ALONE, device=CPU, num_shapes=1, say=str)
        try:
            for _ in range(3):
                batches = (MicroBatch(made.collate([size] * num), num) for _ in range(2))
                engine.step(batches, 2 * num)
        except Exception as error:
            assert is_out_of_memory(error)
            return False
    return True
