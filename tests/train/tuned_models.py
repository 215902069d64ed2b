"""Recipes whose largest batch under a cap is looked for, and the truth: by trying every batch.

Work of the tuner's child, done in a fork (tests/harness/errands.py).
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tests.unit.memory import models
from torch.utils.data import Dataset

from tasuki.data.loader import MicroBatch
from tasuki.data.order import Order
from tasuki.data.shares import share_of_step
from tasuki.loop.ranks import ALONE
from tasuki.memory import batch_size
from tasuki.spec.resolved import stage_from_plain
from tasuki.testing.memory import VARIABLE, memory_cap
from tasuki.train.advice import is_out_of_memory
from tasuki.train.assemble import assemble, make_engine
from tasuki.train.data import prepare_data
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


class Graphs(_Sized, models.Graphs):
    pass


class Gpt(_Sized, models.Gpt):
    sizes = (16, 32, 48)


class Branching(_Sized, models.Mlp):
    """Numbers leave torch: no trace can follow."""

    def loss(self, model: Any, batch: Any) -> Any:
        loss = super().loss(model, batch)
        return loss if float(loss.detach().numpy()) < 1e9 else loss * 2


class Clouds(models.Graphs):
    """A step of graphs of very different sizes; the small ones have more edges for each node."""

    def build_dataset(self, source: str, split: str) -> Any:
        return Numbers([4 + n % 7 for n in range(250)] + [50 + n for n in range(50)])

    def sample_costs(self, dataset: Any) -> dict[str, Any]:
        return {
            "nodes": np.array(dataset.sizes),
            "edges": np.array(list(map(edges, dataset.sizes))),
        }

    def collate(self, samples: list[int]) -> Any:
        num = sum(map(edges, samples))
        index = torch.zeros(2, num, dtype=torch.int64)
        return {"x": torch.zeros(sum(samples), self.width), "edge_index": index}


def edges(nodes: int) -> int:
    return 3 * nodes if nodes < 50 else nodes // 2


def plain(recipe: str, **keys: Any) -> dict[str, Any]:
    return {"name": "a", "recipe": f"tests.train.tuned_models:{recipe}", **keys}


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
    return batch_size.work(order, lambda progress: None)


def truth(recipe: str, cap: str, *, size: int, near: int, **keys: Any) -> int:
    """The largest batch of steps with two micro-batches that fits, among those near."""
    fitting = [n for n in range(max(1, near - 3), near + 4) if _fits(recipe, cap, n, size, keys)]
    assert fitting != list(range(max(1, near - 3), near + 4)), "larger ones fit, too"
    return max(fitting, default=0)


def fits_cost(recipe: str, cap: str, budget: int, **keys: Any) -> bool:
    """Do all micro-batches of a whole epoch fit, split by this budget?"""
    stage = stage_from_plain(plain(recipe, **keys))
    made = load_recipe(str(stage.recipe), {}, paths=[ROOT])
    data = prepare_data(made, stage, rank=0, world=1)
    split = replace(data.split, budget=budget)
    assert isinstance(data.order, Order)
    with memory_cap(cap):
        parts = assemble(made, stage, device=CPU, total_steps=9, say=str)
        engine = make_engine(made, stage, parts, ranks=ALONE, device=CPU, num_shapes=1, say=str)
        try:
            for step in range(data.order.steps_per_epoch):
                share = share_of_step(data.order, step, split)
                batches = (MicroBatch(data.fetcher(r), len(r.indices)) for r in share.requests)
                engine.step(batches, share.num_samples)
        except Exception as error:
            assert is_out_of_memory(error)
            return False
    return True


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
