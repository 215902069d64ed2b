"""Everything a stage's training needs, built from the spec and the recipe, before any state."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from tasuki.data.buckets import plan_buckets
from tasuki.data.loader import seed_everything
from tasuki.data.order import Order, sample_seed
from tasuki.data.split import Batch, resolve_batch
from tasuki.errors import DataError, RecipeError, SpecError, WeightsError
from tasuki.runtime.state import Stateful, Tracked
from tasuki.spec.resolved import ResolvedStage, start_of
from tasuki.store.find import latest_run
from tasuki.train.engine import LossModule, StepEngine
from tasuki.train.evaluate import load_weights
from tasuki.train.optim import PureSchedule, default_optimizer, schedule_factor, warmup_steps
from tasuki.train.ranks import wrap_module
from tasuki.train.recipe import build_dataset, build_model, load_recipe, optional
from tasuki.train.task import Task


@dataclass(frozen=True, slots=True)
class Setup:
    recipe: Any
    dataset: Any
    order: Order
    batch: Batch
    total_steps: int
    model: nn.Module
    tracked: Tracked
    schedule: PureSchedule | None
    """Ours; None where the recipe builds its own, which is tracked instead."""
    validation: Any | None


def prepare(task: Task) -> Setup:
    """The same for a first start and a resume: what a checkpoint holds is put in later."""
    stage = task.stage
    assert stage.recipe is not None
    seed_everything(start_seed(stage, "model", 0))
    recipe = load_recipe(stage.recipe, stage.params, paths=[task.run.code, task.folder])
    dataset, order, batch = order_data(recipe, stage, world=task.ranks.world)
    total = order.total_steps(stage.length.unit, stage.length.count)
    model = build_model(recipe)
    model.to(task.device)
    model.train()
    tracked, schedule = build_optimizer(recipe, model, stage, total)
    validation = None
    if stage.validate is not None and task.is_first:
        source = stage.validate.data if stage.validate.data is not None else stage.data
        validation = build_dataset(recipe, source, stage.validate.split)
    return Setup(recipe, dataset, order, batch, total, model, tracked, schedule, validation)


def order_data(recipe: Any, stage: ResolvedStage, *, world: int) -> tuple[Any, Order, Batch]:
    """The data, the order of their samples, and how a step is split."""
    dataset = build_dataset(recipe, stage.data, stage.split)
    sizes_of = optional(recipe, "sample_sizes")
    sizes = sizes_of(dataset) if sizes_of else None
    if sizes is None and stage.size is not None:
        raise DataError(
            f"stage `{stage.name}` wants size {stage.size.label()}, but nothing tells the sizes",
            hint="add sample_sizes(self, dataset) to the recipe, or leave `size` out",
        )
    wanted = stage.size.contains if stage.size is not None else None
    plan = plan_buckets(sizes, len(dataset), wanted)
    micro_batch = None if stage.micro_batch == "auto" else stage.micro_batch
    batch = resolve_batch(stage.effective_batch, micro_batch, stage.accumulation, world)
    if stage.order == "score":
        raise SpecError("`order: score` does not work yet", hint="use `order: shuffle`")
    order = Order(
        plan,
        seed=stage.seed,
        stage=stage.name,
        effective_batch=batch.effective_batch,
        kind=stage.order,
    )
    return dataset, order, batch


def build_optimizer(
    recipe: Any, model: nn.Module, stage: ResolvedStage, total: int
) -> tuple[Tracked, PureSchedule | None]:
    own_optimizer = optional(recipe, "build_optimizer")
    if own_optimizer:
        optimizer = own_optimizer(model)
        if not hasattr(optimizer, "param_groups"):
            raise RecipeError("build_optimizer did not return an optimizer", hint="return it")
    else:
        optimizer = default_optimizer(model, lr=stage.lr, weight_decay=stage.weight_decay)
    own_schedule = optional(recipe, "build_schedule")
    if own_schedule:
        scheduler: Stateful = own_schedule(optimizer, total)
        return Tracked(model, optimizer, scheduler), None
    warmup = warmup_steps(stage.warmup, total)
    factor = schedule_factor(stage.schedule, total=total, warmup=warmup)
    return Tracked(model, optimizer, None), PureSchedule(optimizer, factor)


def build_engine(task: Task, setup: Setup) -> StepEngine:
    """Wrapped for several ranks, and with DDP's buckets settled: before any state is restored."""
    module = wrap_module(LossModule(setup.model, setup.recipe.loss), task.ranks, task.device)
    return StepEngine(
        module,
        setup.tracked.optimizer,
        device=task.device,
        clip=task.stage.clip or None,
        world=task.ranks.world,
    )


def load_initial_weights(task: Task, model: nn.Module) -> None:
    """At a stage's first start only: later starts have them in their checkpoints."""
    weights = find_initial_weights(task)
    if weights is not None:
        load_weights(model, weights, strict=task.stage.strict)


def find_initial_weights(task: Task) -> Path | None:
    """The file that `init_from` means."""
    stages = task.experiment.stages
    word = task.stage.init_from
    match start_of(word):
        case "none":
            return None
        case "previous":
            path = task.run.stage(stages[task.stage_number - 2].name).weights
        case "stage":
            path = task.run.stage(word).weights
        case "experiment":
            experiment, _, stage = word.partition("/")
            path = latest_run(task.run.path.parent, experiment).stage(stage).weights
        case "file":
            path = task.folder / word
    if not path.is_file():
        raise WeightsError(
            f"stage `{task.stage.name}` starts from `{word}`, but there are no weights at {path}",
            hint="train that stage first, or change `init_from`",
        )
    return path


def start_seed(stage: ResolvedStage, purpose: str, rank: int) -> int:
    """Random numbers from (seed, stage); apart from those of the samples."""
    return sample_seed(stage.seed, f"{stage.name}#{purpose}", 0, rank)
