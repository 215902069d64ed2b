"""From a recipe's model to an engine that steps it, by the keys of the stage.

Precision, gradient checkpointing, compile, offload, optimizer and schedule: the same for a run, for
`plan`'s measurement and for `tune`, so that what was measured is what is run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from tasuki.data.foreign import ForeignOrder
from tasuki.data.order import Order
from tasuki.errors import RecipeError
from tasuki.loop.ranks import Ranks, wrap_module
from tasuki.loop.state import Stateful, Tracked
from tasuki.spec.resolved import ResolvedStage
from tasuki.train.compiled import Compiled, is_timed
from tasuki.train.engine import LossModule, StepEngine
from tasuki.train.offload import OffloadedOptimizer
from tasuki.train.optim import (
    PureSchedule,
    default_optimizer,
    leave_out_by_hand,
    schedule_factor,
    warmup_steps,
)
from tasuki.train.recipe import build_model, optional
from tasuki.train.recompute import find_blocks, recompute

Say = Callable[[str], None]
_NAMES_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Assembled:
    """A model with what moves it."""

    model: nn.Module
    tracked: Tracked
    """What is saved."""
    stepper: Optimizer | OffloadedOptimizer
    """What is stepped: the optimizer, or what stands for it while it is on the host."""
    schedule: PureSchedule | None
    """Ours; None where the recipe builds its own, which is tracked instead."""


def assemble(
    recipe: Any, stage: ResolvedStage, *, device: torch.device, total_steps: int, say: Say
) -> Assembled:
    """Model on its device, optimizer and schedule; fresh."""
    model = build_model(recipe)
    model.to(device)
    model.train()
    _recompute(model, stage, say)
    optimizer = _build_optimizer(recipe, model, stage)
    stepper: Optimizer | OffloadedOptimizer = optimizer
    if stage.offload:
        stepper = OffloadedOptimizer(optimizer)
    own_schedule = optional(recipe, "build_schedule")
    if own_schedule:
        scheduler: Stateful = own_schedule(optimizer, total_steps)
        return Assembled(model, Tracked(model, optimizer, scheduler), stepper, None)
    warmup = warmup_steps(stage.warmup, total_steps, say=say)
    factor = schedule_factor(stage.schedule, total=total_steps, warmup=warmup)
    schedule = PureSchedule(optimizer, factor)
    return Assembled(model, Tracked(model, optimizer, None), stepper, schedule)


def make_engine(
    recipe: Any,
    stage: ResolvedStage,
    assembled: Assembled,
    *,
    ranks: Ranks,
    device: torch.device,
    num_shapes: int | None,
    say: Say,
) -> StepEngine:
    """Compiled and wrapped for several ranks as the stage wants it. `num_shapes` that batches will
    have; None: nobody knows."""
    module: nn.Module = LossModule(assembled.model, recipe.loss)
    if stage.compile is not False:
        mode = "default" if stage.compile is True else stage.compile
        if stage.exact and is_timed(mode):
            say(
                f"WARNING: `compile: {mode}` chooses kernels by timing them: the same samples, but "
                "numbers only close, not bit for bit, between attempts"
            )
        module = Compiled(module, mode=mode, num_shapes=num_shapes, say=say)
    return StepEngine(
        wrap_module(module, ranks, device),
        assembled.stepper,
        device=device,
        clip=stage.clip or None,
        world=ranks.world,
        precision=stage.precision,
    )


def num_shapes(order: Order | ForeignOrder) -> int | None:
    """That batches of this data will have, but for partial ones."""
    return len(order.plan.buckets) if isinstance(order, Order) else None


def _recompute(model: nn.Module, stage: ResolvedStage, say: Say) -> None:
    policy = stage.gradient_checkpointing
    if not isinstance(policy, bool) and isinstance(policy, int):
        _warn_of_period(policy, len(find_blocks(model)), say)
    names = recompute(model, False if policy == "auto" else policy)
    if names:
        more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
        shown = ", ".join(names[:_NAMES_SHOWN])
        keep = "keeps its" if len(names) == 1 else "keep their"
        say(f"Gradient checkpointing: {shown}{more} {keep} inputs only")


def _warn_of_period(period: int, num_blocks: int, say: Say) -> None:
    if period > num_blocks > 0:
        say(
            f"WARNING: `gradient_checkpointing: {period}`: the model has {num_blocks} blocks, so "
            "only the first is computed anew; `true` takes all of them"
        )


def _build_optimizer(recipe: Any, model: nn.Module, stage: ResolvedStage) -> Optimizer:
    own = optional(recipe, "build_optimizer")
    if not own:
        return default_optimizer(model, lr=stage.lr, weight_decay=stage.weight_decay)
    optimizer = own(model)
    if not hasattr(optimizer, "param_groups"):
        raise RecipeError("build_optimizer did not return an optimizer", hint="return it")
    _refuse_unsaved(model, optimizer)
    if isinstance(optimizer, torch.optim.LBFGS):
        raise RecipeError(
            "build_optimizer gave LBFGS, which computes the loss several times in a step",
            hint="a step of tasuki has one gradient: use another optimizer",
        )
    if stage.precision == "fp16":
        leave_out_by_hand(optimizer)
    return optimizer  # type: ignore[no-any-return]


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
