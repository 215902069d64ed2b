"""The optimizer on the host: its states, and its step, leave the GPU's memory to activations.

The optimizer works on copies of the parameters in host memory. After the backward pass gradients go
there, after its step the parameters come back. What is saved is the optimizer as it is; the copies
are made anew from the model after every restore. Costs the way over the bus in every step, and one
wait for it. On a CPU it is the same work with nothing gained.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from tasuki.errors import RecipeError


class OffloadedOptimizer:
    """What the engine steps in the optimizer's place: the parameters are the model's own."""

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self.param_groups = [{"params": list(g["params"])} for g in optimizer.param_groups]
        self._own: list[Tensor] = [p for group in self.param_groups for p in group["params"]]
        self._is_pinned = any(p.device.type == "cuda" for p in self._own)
        self._copies = [_on_host(p, is_pinned=self._is_pinned) for p in self._own]
        self._versions = [p._version for p in self._own]
        """Of the model's parameters when they were equal to the copies."""
        self._grads: list[Tensor | None] = [None] * len(self._own)
        self._refuse_own_list()
        self._exchange()
        self._bring_back_first()

    def _exchange(self) -> None:
        """The optimizer's parameters are the copies from now on; their states come along."""
        to_copy: dict[int, Any] = dict(zip(map(id, self._own), self._copies, strict=True))
        states = {to_copy.get(id(p), p): _moved(s) for p, s in self._optimizer.state.items()}
        self._optimizer.state.clear()
        self._optimizer.state.update(states)
        for group in self._optimizer.param_groups:
            group["params"] = [to_copy[id(p)] for p in group["params"]]

    def _bring_back_first(self) -> None:
        """Right after the optimizer's step, before hooks of the recipe's own look at the model."""
        hooks: Any = self._optimizer._optimizer_step_post_hooks
        handle = self._optimizer.register_step_post_hook(lambda *_: self._bring_back())
        hooks.move_to_end(handle.id, last=False)

    @torch.no_grad()
    def refresh(self) -> None:
        """The copies as the model's parameters are: after a restore."""
        for copy, own in zip(self._copies, self._own, strict=True):
            copy.copy_(own)
        self._versions = [p._version for p in self._own]

    @torch.no_grad()
    def step(self) -> None:
        self._take_over_changes()
        for number, (copy, own) in enumerate(zip(self._copies, self._own, strict=True)):
            copy.grad = None if own.grad is None else self._take(number, own.grad)
        if self._is_pinned:
            torch.cuda.current_stream().synchronize()
        self._optimizer.step()

    def _take_over_changes(self) -> None:
        """Others may change parameters: a norm kept in a forward pass, a clamp after a step."""
        for number, (copy, own) in enumerate(zip(self._copies, self._own, strict=True)):
            if own._version != self._versions[number]:
                copy.copy_(own)
                self._versions[number] = own._version

    def _bring_back(self) -> None:
        with torch.no_grad():
            for copy, own in zip(self._copies, self._own, strict=True):
                own.copy_(copy, non_blocking=True)
        self._versions = [p._version for p in self._own]
        if self._is_pinned:
            # The next step's gradients reuse the memory from which the parameters are copied.
            torch.cuda.current_stream().synchronize()

    def _refuse_own_list(self) -> None:
        """It would step parameters whose gradients go elsewhere."""
        own = {id(p) for p in self._own}
        for name, value in vars(self._optimizer).items():
            if isinstance(value, list | tuple) and any(id(entry) in own for entry in value):
                raise RecipeError(
                    f"`offload`: {type(self._optimizer).__name__} keeps parameters in a list of "
                    f"its own, `{name}`, beside its `param_groups`",
                    hint="`offload: false`, or an optimizer that goes through its `param_groups`",
                )

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
