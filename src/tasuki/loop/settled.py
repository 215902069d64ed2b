"""DDP's gradient buckets, settled before any state is restored.

DDP regroups its gradients after its first step, so that a restarted process would reduce its first
step in another grouping than an undisturbed one: with three ranks or more other last bits. A
recipe's engine lets it do so with a step of its own; of a loop that is not ours nothing can be run,
so DDP is shown a step that only touches the parameters. The order in which it then groups them is
the same at every start.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

_STEPS = 2
"""It regroups at the beginning of its second step."""


def settle_buckets(wrapped: DistributedDataParallel) -> None:
    """Called on all ranks. Parameters, buffers and gradients stay as they were."""
    if wrapped.find_unused_parameters or wrapped.static_graph:
        return  # the first never regroups; the second must see the real step first
    module: Any = wrapped.module
    parameters = [p for p in module.parameters() if p.requires_grad]
    kept = [p.grad for p in parameters]
    before = module.__dict__.get("forward")
    hooks = dict(module._forward_hooks), dict(module._forward_pre_hooks)
    module._forward_hooks.clear()
    module._forward_pre_hooks.clear()
    module.forward = lambda: _touch(parameters)
    try:
        for _ in range(_STEPS):
            with torch.enable_grad():
                wrapped().backward()
    finally:
        del module.forward
        if before is not None:
            module.forward = before
        module._forward_hooks.update(hooks[0])
        module._forward_pre_hooks.update(hooks[1])
        for parameter, grad in zip(parameters, kept, strict=True):
            parameter.grad = grad


def _touch(parameters: list[torch.nn.Parameter]) -> Tensor:
    """A loss that hangs on every parameter and moves none."""
    device = parameters[0].device
    touched = [
        (torch.view_as_real(p) if p.is_complex() else p).sum().float().to(device) * 0.0
        for p in parameters
    ]
    return torch.stack(touched).sum()
