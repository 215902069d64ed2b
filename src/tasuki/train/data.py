"""A stage's data: opened by the recipe, put into buckets, ordered and split."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasuki.data.buckets import BucketPlan, BucketRule, plan_buckets, sort_by_score
from tasuki.data.costs import cost_parts, sample_costs
from tasuki.data.fetch import Fetcher
from tasuki.data.foreign import ForeignLoader, ForeignOrder, is_loader
from tasuki.data.loader import Loader
from tasuki.data.order import SCORE_HINT, Order
from tasuki.data.shares import StepSplit
from tasuki.data.split import Batch, resolve_batch
from tasuki.data.tempo import LoaderSettings
from tasuki.data.worst import whole_cost
from tasuki.errors import DataError, RecipeError
from tasuki.spec.buckets import Buckets
from tasuki.spec.resolved import ResolvedStage
from tasuki.train.recipe import build_dataset, optional

_FOREIGN = (
    "stage `{}` brings a loader of its own: its batches are taken as they come, `effective_batch` "
    "and `micro_batch` have no effect"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageData:
    dataset: Any
    """Map-style, or a loader of the user's own."""
    fetcher: Fetcher
    order: Order | ForeignOrder
    batch: Batch
    split: StepSplit
    warnings: tuple[str, ...] = ()

    @property
    def knows_samples(self) -> bool:
        """Whether it is known which samples a step takes; a loader of the recipe's own is mute."""
        return isinstance(self.order, Order)

    @property
    def told(self) -> str | None:
        """What people should know about the buckets, where they are not simply the sizes."""
        plan = self.order.plan
        if isinstance(plan, BucketPlan) and plan.waste:
            return f"Buckets: {len(plan.buckets)}, padding {plan.waste:.1%}"
        return None


def make_loader(
    data: StageData,
    *,
    first_step: int,
    total_steps: int,
    settings: LoaderSettings | None = None,
    state: Mapping[str, Any] | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Loader | ForeignLoader:
    """Steps from the first to the last; `state` is what a checkpoint kept of a foreign loader."""
    if isinstance(data.order, ForeignOrder):
        return ForeignLoader(
            data.dataset,
            data.order,
            first_step=first_step,
            total_steps=total_steps,
            state=state,
            say=say,
        )
    return Loader(
        data.fetcher,
        data.order,
        data.split,
        first_step=first_step,
        total_steps=total_steps,
        settings=settings,
    )


def prepare_data(
    recipe: Any,
    stage: ResolvedStage,
    *,
    rank: int,
    world: int,
    index: Path | None = None,
) -> StageData:
    """Everything about a stage's data that does not depend on the model.

    A large index of buckets lies in a nameless file in the folder `index`.
    """
    dataset = build_dataset(recipe, stage.data, stage.split)
    if is_loader(dataset):
        return _foreign(dataset, stage, world)
    sizes = sizes_of(recipe, dataset)
    if sizes is None and stage.size is not None:
        raise DataError(
            f"stage `{stage.name}` wants size {stage.size.label()}, but nothing tells the sizes",
            hint="add sample_sizes(self, dataset) to the recipe, or leave `size` out",
        )
    wanted = stage.size.contains if stage.size is not None else None
    plan = plan_buckets(
        sizes,
        len(dataset),
        wanted,
        rule=bucket_rule(stage.buckets),
        index=index,
        label=stage.size.label() if stage.size is not None else "",
    )
    batch = _resolve_batch(stage, world)
    if stage.order == "score":
        plan = sort_by_score(plan, _scores(recipe, dataset), index=index)
    order = _order(plan, stage, batch.effective_batch)
    return StageData(
        dataset=dataset,
        fetcher=Fetcher(dataset, optional(recipe, "collate")),
        order=order,
        batch=batch,
        split=_split(recipe, dataset, stage.buckets, plan, batch, rank=rank, world=world),
        warnings=tuple(_warnings(stage, plan, world)),
    )


def _order(plan: BucketPlan, stage: ResolvedStage, effective_batch: int) -> Order:
    return Order(
        plan,
        seed=stage.seed,
        stage=stage.name,
        effective_batch=effective_batch,
        kind=stage.order,
    )


def _foreign(loader: Any, stage: ResolvedStage, world: int) -> StageData:
    """The recipe brought a loader: it decides about batches, samples and their order."""
    if world > 1:
        raise DataError(
            f"stage `{stage.name}` brings a loader of its own, which works on one rank only",
            hint="return a map-style data set from build_dataset: tasuki then shares it out",
        )
    if stage.size is not None or stage.order != "shuffle" or stage.buckets.kind != "default":
        raise DataError(
            f"`size`, `order` and `buckets` of stage `{stage.name}` cannot reach a loader of the "
            "recipe's own",
            hint="return a map-style data set from build_dataset, or leave these keys out",
        )
    accumulation = stage.accumulation or 1
    length = stage.length.count if stage.length.unit == "steps" else None
    order = ForeignOrder(
        loader,
        seed=stage.seed,
        stage=stage.name,
        accumulation=accumulation,
        length_steps=length,
    )
    batch = Batch(effective_batch=1, micro_batch=1, accumulation=accumulation)
    return StageData(
        dataset=loader,
        fetcher=Fetcher(loader, None),
        order=order,
        batch=batch,
        split=StepSplit(micro_batch=1),
        warnings=(_FOREIGN.format(stage.name),),
    )


def sizes_of(recipe: Any, dataset: Any) -> Any:
    """The size of every sample: as the recipe says, else as the data say (`n` of a file)."""
    own = optional(recipe, "sample_sizes")
    if own is None:
        return getattr(dataset, "sizes", None)
    sizes = own(dataset)
    if sizes is not None and not hasattr(sizes, "__len__"):
        raise RecipeError(
            f"sample_sizes gave a {type(sizes).__name__}", hint="return one whole number per sample"
        )
    return sizes


def bucket_rule(buckets: Buckets) -> BucketRule:
    """How buckets are made, as the spec says; with costs all samples share one."""
    if buckets.kind == "cost":
        return BucketRule(kind="single")
    return BucketRule(
        kind=buckets.kind, uppers=buckets.uppers, count=buckets.count, power=buckets.power
    )


def _resolve_batch(stage: ResolvedStage, world: int) -> Batch:
    micro_batch = None if stage.micro_batch == "auto" else stage.micro_batch
    return resolve_batch(stage.effective_batch, micro_batch, stage.accumulation, world)


def _split(
    recipe: Any,
    dataset: Any,
    buckets: Buckets,
    plan: BucketPlan,
    batch: Batch,
    *,
    rank: int,
    world: int,
) -> StepSplit:
    """A budget that is still to be found bounds nothing."""
    costs, budget = costs_of(recipe, dataset, buckets), buckets.given_budget
    if costs is not None and budget is None:
        budget = whole_cost(costs, plan, batch=batch.effective_batch, world=world)
    return StepSplit(
        rank=rank,
        world=world,
        micro_batch=batch.micro_batch,
        costs=costs,
        budget=max(1, budget or 0),
    )


def costs_of(recipe: Any, dataset: Any, buckets: Buckets) -> NDArray[np.int64] | None:
    """What every sample costs; None where the number of samples alone counts."""
    if buckets.cost is None:
        return None
    return sample_costs(buckets.cost, lambda name: _counts(recipe, dataset, name), len(dataset))


def parts_of_costs(recipe: Any, dataset: Any, buckets: Buckets) -> list[NDArray[np.int64]]:
    """Of every sample, each count that its cost is made of."""
    assert buckets.cost is not None
    return cost_parts(buckets.cost, lambda name: _counts(recipe, dataset, name))


def _counts(recipe: Any, dataset: Any, name: str) -> Any:
    """A number per sample by name: of the recipe's `sample_costs`, else of the data."""
    own = optional(recipe, "sample_costs")
    if own is not None:
        told = own(dataset)
        if name not in told:
            raise RecipeError(
                f"sample_costs gives no `{name}`, which `buckets.cost` names",
                hint=f"it gives {', '.join(told) or 'nothing'}",
            )
        return told[name]
    counts = getattr(dataset, "counts", None)
    if counts is not None:
        return counts(name)
    raise DataError(
        f"nothing tells `{name}` of a sample, which `buckets.cost` names",
        hint="give the recipe sample_costs(self, dataset) → {name: one whole number per sample}",
    )


def _scores(recipe: Any, dataset: Any) -> Sequence[float] | NDArray[np.float64]:
    own = optional(recipe, "sample_scores")
    if own is not None:
        found: Sequence[float] = own(dataset)
        if not hasattr(found, "__len__") or len(found) != len(dataset):
            raise RecipeError(
                f"sample_scores must give one number for each of {len(dataset)} samples",
                hint="return a list or an array of that length",
            )
        return found
    scores = getattr(dataset, "scores", None)
    if scores is None:
        raise DataError("`order: score` needs a score per sample", hint=SCORE_HINT)
    values: NDArray[np.float64] = scores()
    return values


def _warnings(stage: ResolvedStage, plan: BucketPlan, world: int) -> list[str]:
    found = []
    if plan.num_samples < world:
        found.append(
            f"stage `{stage.name}` has {plan.num_samples} samples for {world} ranks: the others "
            "only take part; ask for fewer GPUs"
        )
    if len(plan.buckets) == 1 and stage.order in ("smallest_first", "largest_first"):
        found.append(
            f"`order: {stage.order}` has no effect on stage `{stage.name}`: all its samples are in "
            "one bucket"
        )
    return found
