"""Evaluation: a phase of its own, in a fresh process; also the validation inside training."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import default_collate

from tasuki.checkpoint.weights import explain_mismatch, read_weights
from tasuki.clock import utc
from tasuki.data.loader import fetch, seed_everything
from tasuki.data.order import sample_seed
from tasuki.data.split import resolve_batch
from tasuki.errors import RecipeError, WeightsError
from tasuki.runtime.state import capture_random, restore_random
from tasuki.spec.resolved import ResolvedStage
from tasuki.store.atomic import FORMAT, read_json, read_json_or_none, write_json
from tasuki.telemetry.lines import spelled
from tasuki.train.engine import read_loss, to_device
from tasuki.train.recipe import build_dataset, build_model, load_recipe, optional
from tasuki.train.task import Task


def run_evaluation(task: Task) -> None:
    """Evaluate the stage's weights and write the result; repeated whole after a notice."""
    stage, folder = task.stage, task.run.stage(task.stage.name)
    assert stage.evaluate is not None and stage.recipe is not None
    with task.stopwatch.part("start"):
        seed_everything(sample_seed(stage.seed, stage.name, 0, 0))
        recipe = load_recipe(stage.recipe, stage.params, paths=[task.run.code, task.folder])
        model = build_model(recipe)
        load_weights(model, folder.weights, strict=True)
        model.to(task.device)
        source = stage.evaluate.data if stage.evaluate.data is not None else stage.data
        dataset = build_dataset(recipe, source, stage.evaluate.split)
    with task.stopwatch.part("evaluate"):
        metrics = evaluate_model(recipe, model, dataset, stage=stage, device=task.device)
    write_json(
        folder.evaluation,
        {
            "format": FORMAT,
            "stage": stage.name,
            "data": source if isinstance(source, str) else str(source),
            "split": stage.evaluate.split,
            "metrics": spelled(metrics),
            "sha256": read_json(folder.metrics)["sha256"],
            "evaluated_at": utc(task.clock.wall()),
        },
    )
    told = ", ".join(f"{name} {value:.6g}" for name, value in metrics.items())
    task.say(f"Evaluated stage {stage.name} on {source}: {told}")
    task.event("time", lived_s=task.stopwatch.lived_s, parts=task.stopwatch.rounded())
    task.event("evaluated", stage=stage.name, metrics=metrics)


def evaluate_model(
    recipe: Any, model: nn.Module, dataset: Any, *, stage: ResolvedStage, device: torch.device
) -> dict[str, float]:
    """The recipe's `evaluate`, else the mean loss. The model comes back in training mode as it was,
    and the random states too."""
    kept, was_training = capture_random(), model.training
    model.eval()
    try:
        with torch.no_grad():
            own = optional(recipe, "evaluate")
            metrics = (
                own(model, dataset) if own else mean_loss(recipe, model, dataset, stage, device)
            )
    finally:
        model.train(was_training)
        restore_random(kept)
    return _checked(metrics)


def mean_loss(
    recipe: Any, model: nn.Module, dataset: Any, stage: ResolvedStage, device: torch.device
) -> dict[str, float]:
    """The loss over all samples, weighted, in batches of one size each."""
    collate = optional(recipe, "collate") or default_collate
    batch = resolve_batch(stage.effective_batch, None, None, 1).effective_batch
    losses, weights = [], []
    for indices in _batches_of_one_size(recipe, dataset, batch):
        request = [(i, sample_seed(stage.seed, stage.name, 0, i)) for i in indices]
        data = to_device(collate(fetch(dataset, request)), device)
        loss, weight, _ = read_loss(recipe.loss(model, data))
        losses.append(float(loss) * (len(indices) if weight is None else 1.0))
        weights.append(float(len(indices)) if weight is None else weight)
    return {"loss": math.fsum(losses) / (math.fsum(weights) or 1.0)}


def _batches_of_one_size(recipe: Any, dataset: Any, batch: int) -> list[list[int]]:
    sizes_of = optional(recipe, "sample_sizes")
    sizes = [int(n) for n in sizes_of(dataset)] if sizes_of else [0] * len(dataset)
    batches = []
    for size in sorted(set(sizes)):
        members = [i for i, n in enumerate(sizes) if n == size]
        batches += [members[i : i + batch] for i in range(0, len(members), batch)]
    return batches


def _checked(metrics: object) -> dict[str, float]:
    if not isinstance(metrics, dict):
        raise RecipeError(
            f"evaluate gave {type(metrics).__name__}", hint="return a dict of name: number"
        )
    try:
        return {str(name): float(value) for name, value in metrics.items()}
    except (TypeError, ValueError) as error:
        raise RecipeError(f"evaluate gave {metrics}: {error}", hint="numbers only") from error


def load_weights(model: nn.Module, path: Path, *, strict: bool) -> None:
    """Load a stage's weights, or say in words which layers differ."""
    # Weights of a stage stand beside the metrics that hold their hash; other files have none.
    told = read_json_or_none(path.with_name("metrics.json")) or {}
    weights = read_weights(path, sha256=told.get("sha256"))
    mismatch = explain_mismatch(model.state_dict(), weights)
    if mismatch is not None and strict:
        raise WeightsError(
            f"the weights {path} do not fit this model: {mismatch}",
            hint="use the model they were trained with, or `strict: false` to load what fits",
        )
    fitting = model.state_dict()
    weights = {
        name: value
        for name, value in weights.items()
        if name in fitting and fitting[name].shape == value.shape
    }
    model.load_state_dict(weights, strict=False)
