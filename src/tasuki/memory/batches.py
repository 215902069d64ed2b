"""Batches to trace with: of the recipe's `example_batch`, else of the stage's own data.

Only their shapes matter, so a sample may stand in a batch many times: the largest of its size.
Which points (batch, size) are traced follows from the sizes that there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from tasuki.data.fetch import Request
from tasuki.data.foreign import ForeignOrder
from tasuki.errors import RecipeError
from tasuki.memory.fit import Point
from tasuki.spec.resolved import ResolvedStage
from tasuki.train.data import StageData, make_loader, prepare_data, sizes_of
from tasuki.train.recipe import optional, where

_BATCHES = (2, 3, 5)
"""Never 1: torch takes short cuts where a dimension is 1."""
_HELD_BACK = (7, 56)
"""Near and far: many a model goes another way from some batch on, and a fake step of any batch
costs the same. The near one where so many samples would fill the host."""
_FARTHER = (112, 224)
"""Where steps of different batches do not go alike, and only peaks tell. Small batches peak in the
optimizer's step, large ones in the passes: a curve through both would bend upwards without end."""
_BATCHES_OF_SIZES = (2, 3)
_HELD_BACK_OF_SIZES = (4, 32)


@dataclass(frozen=True, slots=True)
class Points:
    """Where to trace; the last of `used` is the largest."""

    used: tuple[Point, ...]
    near: Point
    held_back: Point
    """Far beyond them."""
    farther: tuple[Point, ...] = ()
    """Still beyond, where nothing but peaks tells; none where data have several sizes."""


def choose_points(sizes: Sequence[int]) -> Points:
    """`sizes` that data have, none where they have no size. The largest is always traced."""
    known = sorted(set(sizes))
    if len(known) < 2:
        size = known[0] if known else 0
        near, far = ((batch, size) for batch in _HELD_BACK)
        farther = tuple((batch, size) for batch in _FARTHER)
        return Points(tuple((batch, size) for batch in _BATCHES), near, far, farther)
    chosen = known if len(known) == 2 else [known[0], known[len(known) // 2], known[-1]]
    used = tuple((batch, size) for batch in _BATCHES_OF_SIZES for size in chosen)
    others = [size for size in known if size not in chosen]
    near, far = ((batch, others[-1] if others else known[-1]) for batch in _HELD_BACK_OF_SIZES)
    return Points(used, near, far)


class Batches:
    """What a micro-batch of a stage looks like."""

    def __init__(self, recipe: Any, stage: ResolvedStage, *, sizes: Sequence[int] = ()) -> None:
        """`sizes`: asked for; else those of the data."""
        self._recipe = recipe
        self._example = optional(recipe, "example_batch")
        self._data: StageData | None = None
        self._sizes_of_samples: Any = None
        self._rows: Any = None
        if self._example is None:
            self._data = prepare_data(recipe, stage, rank=0, world=1)
            self._sizes_of_samples = self._read_sizes(self._data)
        self.sizes = tuple(sizes) or self._own_sizes()

    def at(self, batch: int, size: int) -> Any:
        """Tensors on the host; so many samples of that size (0: whatever they have)."""
        if self._example is not None:
            return self._ask(self._example, size or None, batch)
        assert self._data is not None
        if isinstance(self._data.order, ForeignOrder):
            return self._of_loader(self._data, batch)
        index = self._sample_of(size)
        seeds = [0] * batch if self._data.fetcher.is_seeded else None
        return self._data.fetcher(Request([index] * batch, seeds))

    @staticmethod
    def _ask(example: Any, size: int | None, batch: int) -> Any:
        try:
            return example(size, batch)
        except Exception as error:
            raise RecipeError(
                f"example_batch({size}, {batch}) failed: {where(error)}",
                hint="example_batch(self, size, batch) gives a batch as `loss` gets it, of any "
                "numbers; without it the stage's data are read",
            ) from error

    def _read_sizes(self, data: StageData) -> Any:
        if isinstance(data.order, ForeignOrder):
            return None
        sizes = sizes_of(self._recipe, data.dataset)
        return None if sizes is None else np.asarray(sizes)

    def _own_sizes(self) -> tuple[int, ...]:
        if self._data is None or self._sizes_of_samples is None:
            return ()
        buckets = self._data.order.plan.buckets  # type: ignore[union-attr]
        largest = {self._size_at_most(b.size) for b in buckets if b.size is not None}
        return tuple(sorted(largest))

    def _size_at_most(self, most: int) -> int:
        sizes = self._sizes_of_samples
        return int(sizes[sizes <= most].max())

    def _sample_of(self, size: int) -> int:
        """One of that size; of the nearest below, if there is none."""
        if self._sizes_of_samples is None or not size:
            return 0
        sizes = self._sizes_of_samples
        fitting = sizes[sizes <= size]
        wanted = fitting.max() if len(fitting) else sizes.min()
        return int(np.flatnonzero(sizes == wanted)[0])

    def _of_loader(self, data: StageData, batch: int) -> Any:
        """The first batch of a loader that the recipe brings, its rows cut or repeated."""
        if self._rows is None:
            loader = make_loader(data, first_step=0, total_steps=1)
            batches, _ = next(iter(loader.steps()))
            self._rows = next(iter(batches)).data
            loader.stop()
        rows = {leaf.shape[:1] for leaf in tree_leaves(self._rows) if isinstance(leaf, Tensor)}
        if len(rows) != 1 or not next(iter(rows)):
            raise RecipeError(
                "the batches of the recipe's loader cannot be made larger or smaller here: their "
                "tensors do not have one row per sample",
                hint="give the recipe example_batch(self, size, batch)",
            )
        wanted = torch.arange(batch) % next(iter(rows))[0]
        return tree_map(lambda v: v[wanted] if isinstance(v, Tensor) else v, self._rows)
