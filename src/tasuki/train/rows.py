"""Numbers of a recipe's own in a line of metrics."""

from __future__ import annotations

from typing import Any

from tasuki.errors import RecipeError
from tasuki.runs.metrics import TIMING_KEYS

_ROW = {
    *("stage", "epoch", "step", "samples", "split", "lr", "loss_scale", "overflows"),
    *TIMING_KEYS,
}


def named(values: dict[str, float]) -> dict[str, float]:
    """A recipe's numbers must not take the place of a row's own."""
    taken = sorted(_ROW & set(values))
    if taken:
        raise RecipeError(
            f"a number to log is called `{taken[0]}`, which a line of metrics has already",
            hint="give it another name",
        )
    return values


def numbers(scalars: dict[str, Any]) -> dict[str, float]:
    """What the recipe's loss gave to be logged."""
    found: dict[str, float] = {}
    for name, value in scalars.items():
        try:
            found[str(name)] = float(value)
        except (TypeError, ValueError, RuntimeError) as error:
            raise RecipeError(
                f"`loss` gave `{name}` to be logged, which is no number: {error}",
                hint="give numbers, or tensors of one element",
            ) from error
    if "loss" in found:
        raise RecipeError(
            "`loss` gave a number called `loss` to be logged: a line of metrics has one already",
            hint="give it another name",
        )
    return named(found)
