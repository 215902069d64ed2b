"""The optimizer on the host: its states, and its step, leave the GPU's memory to activations.

The optimizer works on copies of the parameters in host memory. After the backward pass gradients
go there, after its step the parameters come back. What is saved is the optimizer as it is; the
copies are made anew from the model after every restore. Costs the way over the bus in every step,
and one wait for it. Called by assemble.py; on a CPU it is the same work with nothing gained.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer


class OffloadedOptimizer:
    """What the engine steps in the optimizer's place: the parameters are the model's own."""

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self.param_groups = [{"params": list(g["params"])} for g in optimizer.param_groups]
        self._own: list[Tensor] = [p for group in self.param_groups for p in group["params"]]
        is_gpu = any(p.device.type == "cuda" for p in self._own)
        self._copies = [_on_host(p, is_pinned=is_gpu) for p in self._own]
        self._grads: list[Tensor | None] = [None] * len(self._own)
        self._is_pinned = is_gpu
        self._exchange()

    def _exchange(self) -> None:
        """The optimizer's parameters are the copies from now on; their states come along."""
        to_copy = dict(zip(map(id, self._own), self._copies, strict=True))
        states = {to_copy[id(p)]: _moved(state) for p, state in self._optimizer.state.items()}
        self._optimizer.state.clear()
        self._optimizer.state.update(states)
        for group in self._optimizer.param_groups:
            group["params"] = [to_copy[id(p)] for p in group["params"]]

    def refresh(self) -> None:
        """The copies as the model's parameters are: after a restore."""
        with torch.no_grad():
            for copy, own in zip(self._copies, self._own, strict=True):
                copy.copy_(own)

    @torch.no_grad()
    def step(self) -> None:
        for number, (copy, own) in enumerate(zip(self._copies, self._own, strict=True)):
            copy.grad = None if own.grad is None else self._take(number, own.grad)
        if self._is_pinned:
            torch.cuda.current_stream().synchronize()
        self._optimizer.step()
        for copy, own in zip(self._copies, self._own, strict=True):
            own.copy_(copy, non_blocking=True)
        if self._is_pinned:
            # The next step's gradients reuse the memory from which the parameters are copied.
            torch.cuda.current_stream().synchronize()

    def _take(self, number: int, grad: Tensor) -> Tensor:
        held = self._grads[number]
        if held is None or held.shape != grad.shape or grad.is_sparse:
            held = _on_host(grad, is_pinned=self._is_pinned and not grad.is_sparse)
            self._grads[number] = held
            return held
        return held.copy_(grad, non_blocking=True)

    def zero_grad(self, set_to_none: bool = True) -> None:
        for own in self._own:
            if set_to_none:
                own.grad = None
            elif own.grad is not None:
                own.grad.zero_()


def _on_host(tensor: Tensor, *, is_pinned: bool) -> Tensor:
    copy = tensor.detach().to("cpu", copy=True)
    if is_pinned:
        copy = copy.pin_memory()
    return copy.requires_grad_(tensor.requires_grad)


def _moved(state: Any) -> Any:
    return {k: v.to("cpu") if isinstance(v, Tensor) else v for k, v in state.items()}
