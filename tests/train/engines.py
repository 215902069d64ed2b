"""A step engine on the CPU around any model, and what is compared of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tasuki.train.engine import LossModule, StepEngine

CPU = torch.device("cpu")


def make_engine(
    model: nn.Module,
    loss: Callable[..., Any],
    optimizer: Any,
    *,
    clip: float | None = 1.0,
    precision: str = "fp32",
) -> StepEngine:
    module = LossModule(model, loss)
    return StepEngine(module, optimizer, device=CPU, clip=clip, world=1, precision=precision)


def weights(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def all_state(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[Tensor]:
    moments = [t for s in optimizer.state.values() for t in s.values() if torch.is_tensor(t)]
    return [t.detach().clone() for t in (*model.parameters(), *model.buffers(), *moments)]


def are_equal(ones: list[Tensor], others: list[Tensor]) -> bool:
    return all(torch.equal(one, other) for one, other in zip(ones, others, strict=True))
