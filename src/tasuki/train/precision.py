"""In which number formats a step computes: fp32, tf32, bf16 or fp16.

Weights and optimizer states stay fp32 in all of them; autocast computes what can be in the smaller
format. fp16 has few bits for small gradients: the loss is scaled before the backward pass, the
gradients are divided by the scale again, and a step that overflowed is left out. The engine, the
validation and evaluations ask here; nobody else decides about formats.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler

from tasuki.errors import NotFinite, RecipeError

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
_SMALLEST_SCALE = 1.0
"""Gradients that are not finite without any scale will not become so."""
_MOST_OVERFLOWS = 20
"""As many may come until a scale fits; if they are more than half of all, it is no accident."""


def autocast(
    precision: str, device: torch.device, *, is_cached: bool = True
) -> contextlib.AbstractContextManager[Any]:
    """Around a forward pass. It may be entered again and again, not inside itself. Where weights
    may change inside, as in an evaluation that swaps them, nothing that was cast must be cached."""
    dtype = _DTYPES.get(precision)
    if dtype is None:
        return contextlib.nullcontext()
    return torch.autocast(device.type, dtype, cache_enabled=is_cached)


def apply_precision(precision: str, device: torch.device) -> list[str]:
    """Set what holds for the whole process; what is to be said about it. Refuses what cannot be."""
    is_gpu = device.type == "cuda"
    torch.set_float32_matmul_precision("high" if precision == "tf32" and is_gpu else "highest")
    torch.backends.cudnn.allow_tf32 = precision == "tf32"
    if precision == "tf32" and not is_gpu:
        return ["`precision: tf32` is for GPUs: this device computes in fp32"]
    if precision == "tf32" and torch.cuda.get_device_capability(device) < (8, 0):
        return ["`precision: tf32`: this GPU has no TF32 and computes in fp32"]
    if precision == "bf16" and is_gpu and not torch.cuda.is_bf16_supported(False):
        raise RecipeError(
            f"`precision: bf16`: {torch.cuda.get_device_name(device)} cannot compute in bf16",
            hint="write `precision: fp16`",
        )
    if precision == "fp16" and not is_gpu:
        return ["`precision: fp16` is for GPUs: on a CPU it is slow, bf16 has the same size"]
    return []


def refuse_half_weights(precision: str, parameters: Iterable[Tensor]) -> None:
    """Gradients in fp16 cannot be freed of their scale without losing what it saved."""
    if precision == "fp16" and any(p.dtype == torch.float16 for p in parameters):
        raise RecipeError(
            "`precision: fp16` trains weights in fp32 and computes in fp16, but the model has "
            "weights in fp16",
            hint="build the model in fp32 (no `.half()`); or `precision: fp32`, which computes in "
            "the model's own format",
        )


class Scaling:
    """The scale of an fp16 run, and how many steps overflowed. Nothing here reads the device but
    `facts` and `state`, unless the optimizer cannot leave out a step by itself (fused ones can)."""

    def __init__(self, device: torch.device) -> None:
        self._scaler = GradScaler(device.type)
        self._overflows = torch.zeros((), dtype=torch.float64, device=device)
        self._steps = 0
        self.may_skip = False
        """Steps may be left out for good reasons (`on_nan`): the scale then stays at 1 or more, and
        only when most steps are left out the run is broken."""

    def scale(self, loss: Tensor) -> Tensor:
        scaled = self._scaler.scale(loss)
        assert isinstance(scaled, Tensor)
        return scaled

    def unscale(self, optimizer: Any) -> None:
        """The gradients as they are. Once in a step, after all backward passes."""
        self._scaler.unscale_(optimizer)

    def step(self, optimizer: Any) -> None:
        """The optimizer's step, unless a gradient overflowed; then the next scale."""
        overflows = self._scaler._found_inf_per_device(optimizer)
        if not overflows:  # no parameter has a gradient: torch's scaler refuses such a step
            self._scaler._per_optimizer_states.clear()
            optimizer.step()
            return
        self._scaler.step(optimizer)
        for found in overflows.values():
            self._overflows += found.to(self._overflows.device)
        self._scaler.update()
        self._steps += 1
        if self.may_skip:
            self._scaler._scale.clamp_(min=_SMALLEST_SCALE)  # type: ignore[union-attr]

    def facts(self) -> dict[str, float]:
        """For a log line. Raises when no scale helps."""
        scale, overflows = self._scaler.get_scale(), int(self._overflows)
        is_most = overflows >= _MOST_OVERFLOWS and overflows * 2 > self._steps
        if scale < _SMALLEST_SCALE or (scale == _SMALLEST_SCALE and self.may_skip and is_most):
            raise NotFinite(
                f"gradients are not finite even with a loss scale of {scale:g}; {overflows} steps "
                "were left out",
                hint="`precision: bf16` has the range of fp32; else look for NaN in the data, "
                "lower `lr`, or write `on_nan: skip`",
            )
        return {"loss_scale": scale, "overflows": overflows}

    def state(self) -> dict[str, Any]:
        state = {"scaler": self._scaler.state_dict(), "overflows": int(self._overflows)}
        return {**state, "steps": self._steps}

    def restore(self, state: dict[str, Any]) -> None:
        self._scaler.load_state_dict(state["scaler"])
        self._overflows.fill_(state["overflows"])
        self._steps = state["steps"]


def make_scaling(
    precision: str, device: torch.device, parameters: Iterable[nn.Parameter | Tensor]
) -> Scaling | None:
    """For fp16 alone."""
    refuse_half_weights(precision, parameters)
    return Scaling(device) if precision == "fp16" else None
