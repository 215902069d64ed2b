"""Evaluation: a phase of its own, in a fresh process; also the validation inside training."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from tasuki.checkpoint.weights import explain_mismatch, read_weights
from tasuki.clock import utc
from tasuki.data.buckets import BucketRule, plan_buckets
from tasuki.data.fetch import Fetcher, Request, seed_everything
from tasuki.data.foreign import is_loader, iterate, samples_in, seed_pass
from tasuki.data.order import sample_seed
from tasuki.data.split import DEFAULT_EFFECTIVE_BATCH, split_by_cost
from tasuki.errors import RecipeError, WeightsError
from tasuki.loop.state import capture_random, restore_random
from tasuki.runs.atomic import FORMAT, read_json, read_json_or_none, write_json
from tasuki.runs.lines import spelled
from tasuki.runs.runs import StageFolder
from tasuki.spec.resolved import ResolvedStage
from tasuki.spec.values import Sizes
from tasuki.train.advice import evaluation_advice, is_out_of_memory
from tasuki.train.data import bucket_rule, costs_of, sizes_of
from tasuki.train.engine import to_device
from tasuki.train.losses import read_loss
from tasuki.train.precision import apply_precision, autocast
from tasuki.train.recipe import build_dataset, build_model, load_recipe, optional
from tasuki.train.remember import remember_evaluation
from tasuki.train.roomier import NOTHING_LESS, BatchTooLarge, Decisions, Most, evaluate_in_room
from tasuki.train.task import Task

FIT_HINT = "use the model they were trained with, or `strict: false` to load what fits"
OnProgress = Callable[[int, int | None], None]
"""Samples done, samples in all; None: a loader does not say."""


def run_evaluation(task: Task) -> None:
    """Evaluate the stage's weights and write the result; repeated whole after a notice."""
    stage, folder = task.stage, task.run.stage(task.stage.name)
    assert stage.evaluate is not None
    source, split = source_of(stage), stage.evaluate.split
    with task.stopwatch.part("start"):
        paths = [task.run.code, task.folder]
        subject = set_up(stage, folder.weights, paths=paths, device=task.device)
        dataset = build_dataset(subject.recipe, source, split)
    sizes = stage.size if stage.evaluate.data is None else None
    decisions = Decisions(task, "evaluate")
    with task.stopwatch.part("evaluate"), evaluation_advice(stage, subject.batch):
        metrics = evaluate_in_room(
            lambda most: evaluate_model(
                subject.recipe,
                subject.model,
                dataset,
                stage=stage,
                device=task.device,
                sizes=sizes,
                most=most,
            ),
            stage=stage,
            most=decisions.at(0),
            decide=lambda halving: decisions.add(halving, step=0),
        )
    sha256 = read_json(folder.metrics)["sha256"]
    write_json(
        folder.evaluation,
        {
            "format": FORMAT,
            "stage": stage.name,
            "data": source if isinstance(source, str) else str(source),
            "split": split,
            "metrics": spelled(metrics),
            "sha256": sha256,
            "evaluated_at": utc(task.clock.wall()),
        },
    )
    samples = None if is_loader(dataset) else len(dataset)
    remember_evaluation(task, sha256=sha256, samples=samples)
    told = ", ".join(f"{name} {value:.6g}" for name, value in metrics.items())
    task.say(f"Evaluated stage {stage.name} on {source}: {told}")
    task.event("time", lived_s=task.stopwatch.lived_s, parts=task.stopwatch.rounded())
    task.event("evaluated", stage=stage.name, metrics=metrics)


@dataclass(frozen=True, slots=True)
class Subject:
    """A model with weights in it, ready to be evaluated."""

    recipe: Any
    model: nn.Module
    batch: int | None
    """Samples at once; None where the recipe evaluates in its own way."""


def set_up(
    stage: ResolvedStage,
    weights: Path,
    *,
    paths: list[Path],
    device: torch.device,
    hint: str = FIT_HINT,
) -> Subject:
    """The same for the evaluation phase and for `tasuki evaluate`, so that their numbers agree."""
    assert stage.recipe is not None
    apply_precision(stage.precision, device)
    seed_everything(sample_seed(stage.seed, stage.name, 0, 0))
    recipe = load_recipe(stage.recipe, stage.params, paths=paths)
    model = build_model(recipe)
    load_weights(model, weights, strict=True, hint=hint)
    model.to(device)
    return Subject(recipe, model, None if optional(recipe, "evaluate") else batch_of(stage))


def source_of(stage: ResolvedStage) -> str | list[str] | None:
    """The data that `evaluate` names, else the stage's own."""
    named = stage.evaluate.data if stage.evaluate is not None else None
    return named if named is not None else stage.data


def batch_of(stage: ResolvedStage) -> int:
    """Samples at once: what a training step puts through the model, never a whole large step."""
    if isinstance(stage.micro_batch, int):
        return stage.micro_batch
    effective = stage.effective_batch or DEFAULT_EFFECTIVE_BATCH
    return -(-effective // (stage.accumulation or 1))


def evaluate_model(
    recipe: Any,
    model: nn.Module,
    dataset: Any,
    *,
    stage: ResolvedStage,
    device: torch.device,
    sizes: Sizes | None = None,
    most: Most = NOTHING_LESS,
    on_progress: OnProgress = lambda _done, _total: None,
) -> dict[str, float]:
    """The recipe's `evaluate`, else the mean loss over samples of these sizes. The model comes back
    in training mode as it was, and the random states too. BatchTooLarge: out of memory where a
    smaller batch may have room."""
    own = optional(recipe, "evaluate")
    with undisturbed(model), autocast(stage.precision, device, is_cached=False):
        if own:
            return checked(own(model, dataset), by="evaluate")
        return mean_loss(recipe, model, dataset, stage, device, sizes, most, on_progress)


@contextlib.contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """In evaluation mode without gradients; mode and random states are put back afterwards."""
    kept, was_training = capture_random(), model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(was_training)
        restore_random(kept)


def mean_loss(
    recipe: Any,
    model: nn.Module,
    dataset: Any,
    stage: ResolvedStage,
    device: torch.device,
    sizes: Sizes | None = None,
    most: Most = NOTHING_LESS,
    on_progress: OnProgress = lambda _done, _total: None,
) -> dict[str, float]:
    """The loss over all samples, weighted, in batches of one bucket each."""
    found: list[tuple[float, float]] = []
    done = 0
    if is_loader(dataset):
        # The same numbers however often it was gone through before.
        seed_pass(dataset, sample_seed(stage.seed, f"{stage.name}#evaluate", 0, 0))
        for batch in iterate(dataset):
            data, count = to_device(batch, device), samples_in(batch)
            found.append(_loss_of(recipe, model, data, count))
            done += count
            on_progress(done, None)
    else:
        for part in batches_of_one_bucket(recipe, dataset, stage, sizes, most):
            with part.refusing():
                data = make_batch(recipe, dataset, part.indices, stage=stage, device=device)
                found.append(_loss_of(recipe, model, data, len(part.indices)))
            done += len(part.indices)
            on_progress(done, len(dataset))
    losses, weights = [loss for loss, _ in found], [weight for _, weight in found]
    return {"loss": math.fsum(losses) / (math.fsum(weights) or 1.0)}


def _loss_of(recipe: Any, model: nn.Module, data: Any, count: int) -> tuple[float, float]:
    """(a sum of losses, its weight), read."""
    loss, weight, _ = read_loss(recipe.loss(model, data))
    if weight is None:
        return float(loss) * count, float(count)
    return float(loss), float(weight)


class Part(NamedTuple):
    """A batch of an evaluation."""

    indices: list[int]
    size: int | None
    """Of its bucket."""
    amount: int
    unit: str

    @contextlib.contextmanager
    def refusing(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            raise BatchTooLarge(
                error,
                size=self.size,
                amount=self.amount,
                is_single=len(self.indices) == 1,
                unit=self.unit,
            ) from error


def make_batch(
    recipe: Any, dataset: Any, indices: list[int], *, stage: ResolvedStage, device: torch.device
) -> Any:
    """These samples, each read under its own random numbers, on the device."""
    fetcher = Fetcher(dataset, optional(recipe, "collate"))
    seeds = [sample_seed(stage.seed, stage.name, 0, i) for i in indices]
    request = Request(indices, seeds if fetcher.is_seeded else None)
    return to_device(fetcher(request), device)


def batches_of_one_bucket(
    recipe: Any,
    dataset: Any,
    stage: ResolvedStage,
    sizes: Sizes | None = None,
    most: Most = NOTHING_LESS,
) -> Iterator[Part]:
    """The smallest sizes first; within the cost budget, where there is one."""
    costs = costs_of(recipe, dataset, stage.buckets)
    batch = batch_of(stage)
    for size, members in members_by_bucket(recipe, dataset, stage, sizes):
        if costs is None:
            count = min(batch, most.get(size, batch))
            for start in range(0, len(members), count):
                indices = members[start : start + count].tolist()
                yield Part(indices, size, len(indices), "samples")
            continue
        budget = stage.buckets.given_budget or int(costs.sum())
        budget = min(budget, most.get(size, budget))
        for start in range(0, len(members), batch):
            some = members[start : start + batch]
            for piece in split_by_cost(costs[some].tolist(), budget, rank=0, world=1):
                indices = some[piece]
                yield Part(indices.tolist(), size, int(costs[indices].sum()), "cost")


def members_by_bucket(
    recipe: Any, dataset: Any, stage: ResolvedStage, sizes: Sizes | None = None
) -> list[tuple[int | None, NDArray[np.int64]]]:
    """(size, indices of its samples), ascending; one group where nothing tells the sizes."""
    rule = bucket_rule(stage.buckets)
    if rule.kind == "bounds":
        rule = BucketRule(kind="default")  # other data than the training's may be larger
    wanted = sizes.contains if sizes is not None else None
    label = sizes.label() if sizes is not None else ""
    plan = plan_buckets(sizes_of(recipe, dataset), len(dataset), wanted, rule=rule, label=label)
    everything = np.arange(len(dataset), dtype=np.int64)
    found = [plan.index(number) for number, _ in enumerate(plan.buckets)]
    return [
        (bucket.size, everything if members is None else members)
        for bucket, members in zip(plan.buckets, found, strict=True)
    ]


def checked(metrics: object, *, by: str) -> dict[str, float]:
    """Numbers by name, or a RecipeError that names the method they come from."""
    if not isinstance(metrics, dict):
        raise RecipeError(
            f"{by} gave {type(metrics).__name__}", hint="return a dict of name: number"
        )
    try:
        return {str(name): float(value) for name, value in metrics.items()}
    except (TypeError, ValueError) as error:
        raise RecipeError(f"{by} gave {metrics}: {error}", hint="numbers only") from error


def load_weights(model: nn.Module, path: Path, *, strict: bool, hint: str = FIT_HINT) -> None:
    """Load weights, or say in words which layers differ."""
    beside = StageFolder(path.parent)
    # Weights of a stage stand beside the metrics that hold their hash; other files have none.
    told = (read_json_or_none(beside.metrics) or {}) if path == beside.weights else {}
    weights = read_weights(path, sha256=told.get("sha256"))
    mismatch = explain_mismatch(model.state_dict(), weights)
    if mismatch is not None and strict:
        raise WeightsError(f"the weights {path} do not fit this model: {mismatch}", hint=hint)
    fitting = model.state_dict()
    weights = {
        name: value
        for name, value in weights.items()
        if name in fitting and fitting[name].shape == value.shape
    }
    model.load_state_dict(weights, strict=False)
