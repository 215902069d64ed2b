"""A step's gradients: clipped by their norm, and dropped. torch's own operations, in fewer calls.

torch's `clip_grad_norm_` sorts gradients by device and dtype in every step, and `zero_grad` opens a
region for the profiler; of a step of 1 ms both take 8 %. Where all parameters are alike there is
nothing to sort: the same operations on the same numbers, and the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

_PLAIN = (Tensor, nn.Parameter)
_NOTHING_BY_0 = 1e-6
"""As torch has it."""


def are_alike(parameters: Sequence[Tensor]) -> bool:
    """Of one dtype, on one device, and no tensors of somebody's own."""
    kinds = {(p.device, p.dtype) for p in parameters}
    return len(kinds) == 1 and all(type(p) in _PLAIN for p in parameters)


def clip_alike(parameters: Sequence[Tensor], limit: float) -> Tensor:
    """`nn.utils.clip_grad_norm_` of parameters that are alike; the norm before."""
    grads = [p.grad for p in parameters if p.grad is not None]
    if not grads:
        return torch.tensor(0.0)
    norms = torch.stack(torch._foreach_norm(grads, 2.0))
    norm: Tensor = torch.linalg.vector_norm(norms, 2.0)
    torch._foreach_mul_(grads, torch.clamp(limit / (norm + _NOTHING_BY_0), max=1.0))
    return norm


def drops_plainly(optimizer: object) -> bool:
    """Its `zero_grad` is torch's: it only lets go of gradients."""
    if not isinstance(optimizer, Optimizer) or "zero_grad" in vars(optimizer):
        return False
    return type(optimizer).zero_grad is Optimizer.zero_grad


def drop(parameters: Sequence[Tensor]) -> None:
    for parameter in parameters:
        parameter.grad = None
