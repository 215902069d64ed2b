"""Is the recipe's `example_batch` a batch as its data give it? If not, it would foretell nonsense.

Compared are names, types and shapes of what a batch consists of. Lengths that differ between two
samples of the same size (edges of a graph) are the example's to choose.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tasuki.data.fetch import Request
from tasuki.errors import RecipeError
from tasuki.train.data import StageData
from tasuki.train.leaves import Leaf, leaves_of
from tasuki.train.recipe import optional, where

_BATCH = 2
_SHOWN = 3


def check_example(
    recipe: Any, data: StageData, *, size: int | None, samples: Sequence[int]
) -> None:
    """Refuses one that disagrees. `samples`: two of that size, if there are."""
    example = optional(recipe, "example_batch")
    if example is None:
        return
    try:
        made = _named(example(size, _BATCH))
    except Exception as error:
        raise RecipeError(
            f"example_batch({size}, {_BATCH}) failed: {where(error)}",
            hint="example_batch(self, size, batch) gives a batch as `loss` gets it",
        ) from error
    real = [_named(_fetch(data, index)) for index in samples]
    found = list(_differences(made, real))
    if found:
        more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        raise RecipeError(
            f"example_batch({size}, {_BATCH}) disagrees with the data: "
            f"{'; '.join(found[:_SHOWN])}{more}",
            hint="give it the names, types and shapes that the data's own batches have",
        )


def _fetch(data: StageData, index: int) -> Any:
    seeds = [0] * _BATCH if data.fetcher.is_seeded else None
    return data.fetcher(Request([index] * _BATCH, seeds))


def _named(batch: Any) -> dict[str, Leaf]:
    return {leaf.name: leaf for leaf in leaves_of(batch)}


def _differences(made: Mapping[str, Leaf], real: Sequence[Mapping[str, Leaf]]) -> Iterator[str]:
    first, last = real[0], real[-1]
    for name in dict.fromkeys([*first, *made]):
        if name not in made:
            yield f"it has no `{name}`"
        elif name not in first:
            yield f"the data have no `{name}`"
        elif not _agree(made[name], first[name], last.get(name), is_single=len(real) == 1):
            yield f"`{name}` is {_spell(made[name])}, in the data {_spell(first[name])}"


def _agree(made: Leaf, one: Leaf, other: Leaf | None, *, is_single: bool) -> bool:
    if made.type != one.type or len(made.shape) != len(one.shape):
        return False
    if is_single or other is None or len(other.shape) != len(one.shape):
        return True  # nobody knows which lengths are fixed
    triples = zip(made.shape, one.shape, other.shape, strict=True)
    return all(mine == first for mine, first, second in triples if first == second)


def _spell(leaf: Leaf) -> str:
    return f"{leaf.type} {' × '.join(map(str, leaf.shape))}".strip()
