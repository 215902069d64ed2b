"""What `tasuki check` does in child processes beside the two steps of a stage.

It takes all steps of a schedule, as two steps do not show where it ends. And it evaluates a few
samples, as a whole validation may take hours.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from tasuki.data.fetch import seed_everything
from tasuki.data.foreign import is_loader
from tasuki.errors import TasukiError, place_of
from tasuki.spec.resolved import ResolvedStage
from tasuki.train.data import prepare_data
from tasuki.train.recipe import load_recipe, optional

_FEW_SAMPLES = 8
_FEW_BATCHES = 2
_WALK_S = 3.0  # a schedule of millions of steps is not gone through to its end


class ScheduleCheck(NamedTuple):
    """The steps of a stage, and what is wrong with its schedule."""

    steps: int | None = None
    message: str = ""


def walk_schedules(
    stages: list[ResolvedStage], folder: Path, num_ranks: int
) -> list[ScheduleCheck]:
    """Take all steps of each schedule, with a single parameter."""
    torch.set_num_threads(1)
    found = []
    for stage in stages:
        try:
            found.append(_walk(stage, folder, num_ranks))
        except (Exception, SystemExit):  # its two steps tell more, and in which check
            found.append(ScheduleCheck())
    return found


def _walk(stage: ResolvedStage, folder: Path, num_ranks: int) -> ScheduleCheck:
    assert stage.recipe is not None
    recipe = load_recipe(stage.recipe, stage.params, paths=[folder])
    seed_everything(0)
    order = prepare_data(recipe, stage, rank=0, world=num_ranks).order
    total = order.total_steps(stage.length.unit, stage.length.count)
    if (build := optional(recipe, "build_schedule")) is None:
        return ScheduleCheck(total)
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=stage.lr, momentum=0.9)
    try:
        schedule = build(optimizer, total)
    except Exception:  # it may want the parameter groups of the recipe's own optimizer
        return ScheduleCheck(total)
    optimizer.step()
    until = time.monotonic() + _WALK_S
    for step in range(1, total + 1):
        if time.monotonic() > until:
            break
        try:
            schedule.step()
        except Exception as error:
            what = error.message if isinstance(error, TasukiError) else str(error)
            message = f"{type(error).__name__}: {what}{place_of(error)}"
            return ScheduleCheck(total, f"it fails after step {step} of {total}: {message}")
    return ScheduleCheck(total)


def take_few(dataset: Any) -> Any:
    """A few samples of a data set, the last one among them, or the first batches of a loader."""
    if is_loader(dataset):
        return FewBatches(dataset)
    places = np.linspace(0, len(dataset) - 1, min(_FEW_SAMPLES, len(dataset))).round()
    return FewSamples(dataset, [int(place) for place in np.unique(places)])


class FewSamples:
    """Some samples of a data set; for the rest it is that data set."""

    def __init__(self, whole: Any, indices: Sequence[int]) -> None:
        self._whole, self._indices = whole, list(indices)
        if (sizes := getattr(whole, "sizes", None)) is not None:
            self.sizes = np.asarray([sizes[index] for index in self._indices])

    def __len__(self) -> int:
        return len(self._indices)

    def __getitem__(self, index: int) -> Any:
        return self._whole[self._indices[index]]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        return [self[index] for index in indices]

    def __iter__(self) -> Iterator[Any]:
        return (self[index] for index in range(len(self)))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.__dict__["_whole"], name)


class FewBatches:
    """The first batches of a loader; for the rest it is that loader."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __len__(self) -> int:
        return min(_FEW_BATCHES, len(self._loader))

    def __iter__(self) -> Iterator[Any]:
        return islice(iter(self._loader), _FEW_BATCHES)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_loader"], name)
