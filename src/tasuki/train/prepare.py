"""Everything a stage's training needs, built from the spec and the recipe, before any state."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from tasuki.data.fetch import seed_everything
from tasuki.data.fingerprint import Looked, fingerprint_samples
from tasuki.data.foreign import ForeignOrder
from tasuki.data.order import Order, sample_seed
from tasuki.data.split import Batch
from tasuki.errors import RecipeError, WeightsError
from tasuki.runtime.state import Stateful, Tracked
from tasuki.spec.resolved import ResolvedStage, start_of
from tasuki.store.find import latest_run
from tasuki.train.data import StageData, prepare_data
from tasuki.train.engine import LossModule, StepEngine
from tasuki.train.evaluate import load_weights
from tasuki.train.optim import PureSchedule, default_optimizer, schedule_factor, warmup_steps
from tasuki.train.ranks import wrap_module
from tasuki.train.recipe import build_dataset, build_model, load_recipe, optional
from tasuki.train.task import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    recipe: Any
    data: StageData
    total_steps: int
    model: nn.Module
    tracked: Tracked
    schedule: PureSchedule | None
    """Ours; None where the recipe builds its own, which is tracked instead."""
    validation: Any | None
    looked: Looked | None = None
    """At some samples, to tell whether the data are what they were; by rank 0 alone."""

    @property
    def order(self) -> Order | ForeignOrder:
        return self.data.order

    @property
    def batch(self) -> Batch:
        return self.data.batch


def prepare(task: Task) -> Setup:
    """The same for a first start and a resume: what a checkpoint holds is put in later."""
    stage = task.stage
    assert stage.recipe is not None
    seed_everything(start_seed(stage, "model", 0))
    recipe = load_recipe(stage.recipe, stage.params, paths=[task.run.code, task.folder])
    data = prepare_data(
        recipe,
        stage,
        rank=task.ranks.rank,
        world=task.ranks.world,
        index=task.run.path,
    )
    if data.told:
        task.say(data.told)
    for warning in data.warnings:
        task.say(f"WARNING: {warning}")
    order = data.order
    looked = None
    if task.is_first and isinstance(order, Order):
        looked = fingerprint_samples(data.fetcher, order)  # now, while this process is small
    total = order.total_steps(stage.length.unit, stage.length.count)
    model = build_model(recipe)
    model.to(task.device)
    model.train()
    tracked, schedule = build_optimizer(recipe, model, stage, total)
    validation = None
    if stage.validate is not None and task.is_first:
        source = stage.validate.data if stage.validate.data is not None else stage.data
        validation = build_dataset(recipe, source, stage.validate.split)
    return Setup(
        recipe=recipe,
        data=data,
        total_steps=total,
        model=model,
        tracked=tracked,
        schedule=schedule,
        validation=validation,
        looked=looked,
    )


def build_optimizer(
    recipe: Any, model: nn.Module, stage: ResolvedStage, total: int
) -> tuple[Tracked, PureSchedule | None]:
    own_optimizer = optional(recipe, "build_optimizer")
    if own_optimizer:
        optimizer = own_optimizer(model)
        if not hasattr(optimizer, "param_groups"):
            raise RecipeError("build_optimizer did not return an optimizer", hint="return it")
        _refuse_unsaved(model, optimizer)
    else:
        optimizer = default_optimizer(model, lr=stage.lr, weight_decay=stage.weight_decay)
    own_schedule = optional(recipe, "build_schedule")
    if own_schedule:
        scheduler: Stateful = own_schedule(optimizer, total)
        return Tracked(model, optimizer, scheduler), None
    warmup = warmup_steps(stage.warmup, total)
    factor = schedule_factor(stage.schedule, total=total, warmup=warmup)
    return Tracked(model, optimizer, None), PureSchedule(optimizer, factor)


def _refuse_unsaved(model: nn.Module, optimizer: Any) -> None:
    """What is trained must be in a checkpoint: a resume would lose it without a word."""
    saved = model.state_dict()
    kept = {v.untyped_storage().data_ptr() for v in saved.values() if isinstance(v, Tensor)}
    kept |= {
        p.untyped_storage().data_ptr() for name, p in model.named_parameters() if name in saved
    }
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.numel() and parameter.untyped_storage().data_ptr() not in kept:
                names = [name for name, p in model.named_parameters() if p is parameter]
                what = f"`{names[0]}`" if names else f"of shape {list(parameter.shape)}"
                raise RecipeError(
                    f"the optimizer trains a parameter {what} that the model's state_dict does not "
                    "hold: a resume would lose it",
                    hint="make it part of the model (and of its state_dict), or leave it out of "
                    "the optimizer",
                )


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
