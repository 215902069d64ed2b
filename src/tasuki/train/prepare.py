"""Everything a stage's training needs, built from the spec and the recipe, before any state."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from tasuki.data.fetch import seed_everything
from tasuki.data.fingerprint import Looked, fingerprint_samples
from tasuki.data.foreign import ForeignOrder
from tasuki.data.order import Order, sample_seed
from tasuki.data.split import Batch
from tasuki.errors import WeightsError
from tasuki.loop.state import Tracked
from tasuki.runs.find import latest_run
from tasuki.spec.resolved import ResolvedStage, start_of
from tasuki.train.assemble import Assembled, assemble, make_engine, num_shapes
from tasuki.train.data import StageData, prepare_data
from tasuki.train.engine import StepEngine
from tasuki.train.evaluate import load_weights
from tasuki.train.optim import PureSchedule
from tasuki.train.recipe import build_dataset, load_recipe
from tasuki.train.task import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    recipe: Any
    data: StageData
    total_steps: int
    assembled: Assembled
    validation: Any | None
    looked: Looked | None = None
    """At some samples, to tell whether the data are what they were; by rank 0 alone."""

    @property
    def model(self) -> nn.Module:
        return self.assembled.model

    @property
    def tracked(self) -> Tracked:
        return self.assembled.tracked

    @property
    def schedule(self) -> PureSchedule | None:
        return self.assembled.schedule

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
    task.doing("importing the recipe")
    seed_everything(start_seed(stage, "model", 0))
    recipe = load_recipe(stage.recipe, stage.params, paths=[task.run.code, task.folder])
    task.doing("opening the data")
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
    planned = order.total_steps(stage.length.unit, stage.length.count)
    task.doing("building the model")
    assembled = assemble(recipe, stage, device=task.device, total_steps=planned, say=task.say)
    validation = None
    if stage.validate is not None and task.is_first:
        source = stage.validate.data if stage.validate.data is not None else stage.data
        validation = build_dataset(recipe, source, stage.validate.split)
    return Setup(
        recipe=recipe,
        data=data,
        total_steps=planned,
        assembled=assembled,
        validation=validation,
        looked=looked,
    )


def build_engine(task: Task, setup: Setup) -> StepEngine:
    """Wrapped for several ranks, and with DDP's buckets settled: before any state is restored."""
    return make_engine(
        setup.recipe,
        task.stage,
        setup.assembled,
        ranks=task.ranks,
        device=task.device,
        num_shapes=num_shapes(setup.order),
        say=task.say,
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
