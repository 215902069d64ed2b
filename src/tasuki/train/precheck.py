"""The last checks of a stage for `tasuki check`, in a child process, after its two real steps.

It takes all steps of the schedule, as two steps do not show where it ends. And it evaluates a few
samples, as a complete validation may take hours.
"""

from __future__ import annotations

import time
from itertools import islice
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import nn

from tasuki.checkpoint.export import export_last_weights
from tasuki.data.fetch import seed_everything
from tasuki.data.foreign import is_loader
from tasuki.errors import RecipeError, TasukiError
from tasuki.runs.runs import RunFolder
from tasuki.spec.resolved import ResolvedEvaluate, ResolvedStage, ResolvedValidate
from tasuki.train.advice import evaluation_advice, setup_advice
from tasuki.train.data import prepare_data
from tasuki.train.evaluate import evaluate_model, set_up
from tasuki.train.recipe import build_dataset, load_recipe, optional, where
from tasuki.train.roomier import NOTHING_LESS, evaluate_in_room

_FEW_SAMPLES = 8
_FEW_BATCHES = 2
_WALK_S = 3.0  # a schedule of millions of steps is not gone through to its end


def finish_checks(
    stage: ResolvedStage,
    tried: ResolvedStage,
    run: Path,
    weights: Path,
    folder: Path,
    num_ranks: int,
    device: str,
) -> dict[str, tuple[str, str]]:
    """Export the weights of a run, walk the schedule, validate and evaluate.

    Returns message and hint of each check that failed. `tried` is the stage as it was tried: on
    this device, with fewer samples in a step.
    """
    export_last_weights(RunFolder(run), stage.name, weights)
    failures: dict[str, tuple[str, str]] = {}
    parts = {"schedule": None, "validate": stage.validate, "evaluate": stage.evaluate}
    for check, part in parts.items():
        try:
            if check == "schedule":
                _walk_schedule(stage, folder, num_ranks)
            elif part is not None:
                _evaluate_few(tried, part, weights, folder, torch.device(device))
        except TasukiError as error:
            failures[check] = (error.message, error.hint)
        except (Exception, SystemExit) as error:
            failures[check] = (where(error), "")
    return failures


def _walk_schedule(stage: ResolvedStage, folder: Path, num_ranks: int) -> None:
    """Take all steps of the schedule with a single parameter."""
    assert stage.recipe is not None
    recipe = load_recipe(stage.recipe, stage.params, paths=[folder])
    seed_everything(0)
    order = prepare_data(recipe, stage, rank=0, world=num_ranks).order
    total = order.total_steps(stage.length.unit, stage.length.count)
    if (build := optional(recipe, "build_schedule")) is None:
        return
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=stage.lr, momentum=0.9)
    try:
        schedule = build(optimizer, total)
    except Exception:  # it may need the parameter groups of the recipe's own optimizer
        return
    optimizer.step()
    until = time.monotonic() + _WALK_S
    for step in range(1, total + 1):
        if time.monotonic() > until:
            break
        try:
            schedule.step()
        except Exception as error:
            message = f"it fails after step {step} of {total}: {where(error)}"
            raise RecipeError(message) from error


def _evaluate_few(
    stage: ResolvedStage,
    part: ResolvedValidate | ResolvedEvaluate,
    weights: Path,
    folder: Path,
    device: torch.device,
) -> None:
    """Evaluate the first batch, or a few samples where the recipe or a loader makes the batches."""
    with setup_advice(stage):
        subject = set_up(stage, weights, paths=[folder], device=device)
    dataset = build_dataset(subject.recipe, part.data or stage.data, part.split)
    if optional(subject.recipe, "evaluate"):
        dataset = FewItems(dataset, _FEW_BATCHES if is_loader(dataset) else _FEW_SAMPLES)
    try:
        with evaluation_advice(stage, subject.batch):
            evaluate_in_room(
                lambda most: evaluate_model(
                    subject.recipe,
                    subject.model,
                    dataset,
                    stage=stage,
                    device=device,
                    sizes=None if part.data else stage.size,
                    most=most,
                    on_progress=_stop_after_batch,
                ),
                stage=stage,
                most=NOTHING_LESS,
                decide=lambda _: None,
            )
    except _EnoughError:
        pass


class _EnoughError(Exception):
    """The first batch was evaluated."""


def _stop_after_batch(_done: int, _total: int | None) -> NoReturn:
    raise _EnoughError


class FewItems(list[Any]):
    """The first samples of a data set, or batches of a loader, with its other attributes."""

    def __init__(self, data: Any, num_items: int) -> None:
        super().__init__(islice(iter(data), num_items))
        self._data = data
        if hasattr(data, "sizes"):
            self.sizes = data.sizes[: len(self)]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # also `_data` itself, while a DataLoader unpickles this
            raise AttributeError(name)
        return getattr(self._data, name)
