"""The default optimizer and schedule.

Schedules are pure functions of the step, so they have no state to save and cost nothing to seek.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import nn
from torch.optim import AdamW, Optimizer

from tasuki.errors import RecipeError

DEFAULT_WARMUP = 0.1
Say = Callable[[str], None]
_START_DIV = 25.0
_FINAL_DIV = 1e4
"""OneCycle: from lr/25 up to lr, then down to lr/25/10⁴, as torch's OneCycleLR."""


def default_optimizer(model: nn.Module, *, lr: float, weight_decay: float) -> Optimizer:
    """Create AdamW over the trainable parameters, fused where torch supports it for all of them."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    if not parameters:
        raise RecipeError(
            "the model has no parameter that can be trained",
            hint="some parameter of build_model's module must have requires_grad=True",
        )
    kinds = ("cpu", "cuda")
    is_fused = all(p.device.type in kinds and torch.is_floating_point(p) for p in parameters)
    return AdamW(parameters, lr=lr, weight_decay=weight_decay, fused=is_fused)


def leave_out_by_hand(optimizer: Optimizer) -> None:
    """Some fused kernels leave a step out by themselves when a gradient has overflowed. That is
    trusted for Adam's alone: SGD's has made its momentum by then, of memory that nobody wrote."""
    is_trusted = type(optimizer) in (torch.optim.Adam, AdamW)
    is_fused = all(group.get("fused") for group in optimizer.param_groups)
    optimizer._step_supports_amp_scaling = is_trusted and is_fused  # type: ignore[attr-defined]


def warmup_steps(warmup: float | int | None, total: int, *, say: Say = lambda _: None) -> int:
    """`0.1` is a share of the stage, `500` a number of steps. Cut, aloud, where the stage is over
    before its warm-up."""
    if warmup is None:
        warmup = DEFAULT_WARMUP
    is_count = isinstance(warmup, int) and not isinstance(warmup, bool)
    steps = int(warmup if is_count else warmup * total)
    if steps >= total and steps > 0:
        told = f"{steps} steps" if is_count else f"{warmup:g} of {total} steps"
        say(
            f"WARNING: `warmup: {warmup}` ({told}) is as long as the whole stage of {total} steps: "
            "it is cut to leave one step; write a share, as `warmup: 0.1`, or train longer"
        )
    return min(steps, max(0, total - 1))


def schedule_factor(kind: str, *, total: int, warmup: int) -> Callable[[int], float]:
    """step → what the base lr is multiplied with in that step."""
    if kind == "onecycle":
        return _onecycle(total, warmup)
    decays: dict[str, Callable[[float], float]] = {
        "constant": lambda _: 1.0,
        "linear": lambda done: 1.0 - done,
        "cosine": lambda done: (1.0 + math.cos(math.pi * done)) / 2,
        "wsd": lambda done: 1.0 if done < 0.8 else (1.0 - done) / 0.2,
    }
    decay = decays[kind]

    def factor(step: int) -> float:
        if step < warmup:
            return (step + 1) / (warmup + 1)
        return decay((step - warmup) / max(1, total - warmup))

    return factor


def _onecycle(total: int, warmup: int) -> Callable[[int], float]:
    low, final = 1 / _START_DIV, 1 / _START_DIV / _FINAL_DIV
    up_end = max(1.0, float(warmup)) - 1
    down_end = max(up_end + 1, total - 1.0)

    def factor(step: int) -> float:
        if step <= up_end:
            start, end, share = low, 1.0, step / up_end if up_end else 1.0
        else:
            start, end, share = 1.0, final, min(1.0, (step - up_end) / (down_end - up_end))
        return end + (start - end) / 2 * (1 + math.cos(math.pi * share))

    return factor


class PureSchedule:
    """Sets the learning rates of each step from its number alone."""

    def __init__(self, optimizer: Optimizer, factor: Callable[[int], float]) -> None:
        self._optimizer = optimizer
        self._base = [float(group["lr"]) for group in optimizer.param_groups]
        self._factor = factor

    def set_for(self, step: int) -> None:
        factor = self._factor(step)
        for group, base in zip(self._optimizer.param_groups, self._base, strict=True):
            if isinstance(group["lr"], torch.Tensor):
                group["lr"].fill_(base * factor)
            else:
                group["lr"] = base * factor
