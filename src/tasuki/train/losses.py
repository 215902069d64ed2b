"""What a recipe's `loss` may give, and what is said of anything else."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from tasuki.errors import RecipeError

LossOutput = Tensor | tuple[Tensor, Any] | tuple[Tensor, Any, dict[str, Any]]
Weight = float | Tensor

_KINDS = "return a mean, or (sum, weight), or (sum, weight, {name: scalar})"


def read_loss(
    output: LossOutput, *, is_read: bool = True
) -> tuple[Tensor, Weight | None, dict[str, Any]]:
    """(loss, weight, scalars); the weight is None for a bare mean. A weight that is a tensor is
    made a number only where it may be read."""
    if isinstance(output, Tensor):
        return output, None, {}
    if isinstance(output, tuple) and len(output) in (2, 3) and isinstance(output[0], Tensor):
        scalars = output[2] if len(output) == 3 else {}
        weight = output[1]
        if isinstance(weight, Tensor) and not is_read:
            return output[0], weight.detach().double(), scalars
        if not isinstance(scalars, dict):
            raise RecipeError(f"loss gave a {type(scalars).__name__} to be logged", hint=_KINDS)
        return output[0], _read_weight(weight), scalars
    raise RecipeError(f"loss gave {type(output).__name__}", hint=_KINDS)


def _read_weight(weight: Any) -> float:
    hint = "it is what the sum is divided by: the number of samples, or of tokens"
    try:
        number = float(weight)
    except (TypeError, ValueError, RuntimeError) as error:
        words = f"the weight that loss gave is no number but a {type(weight).__name__}: {error}"
        raise RecipeError(words, hint=hint) from error
    if not 0 <= number < math.inf:
        raise RecipeError(f"the weight that loss gave is {number}", hint=hint)
    return number


def refuse_loss(loss: Tensor, error: Exception) -> None:
    """Say it in words where a backward pass failed for what the loss is."""
    if loss.numel() != 1 or loss.is_complex():
        kind = "complex" if loss.is_complex() else f"of shape {list(loss.shape)}"
        raise RecipeError(
            f"loss gave a tensor that is {kind}: only one real number has a gradient",
            hint="`.mean()` of it, or (`.sum()`, weight)",
        ) from error
    if not loss.requires_grad:
        raise RecipeError(
            "loss gave a number that no parameter of the model has a part in: there is no gradient",
            hint="is it made of what `model` gives, without `detach()`, `item()` or `no_grad`?",
        ) from error
