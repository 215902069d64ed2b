"""Everything in float64, with an eye on who draws random numbers.

A model and its batches are converted; what the user's code casts down on the way (`logits.float()`)
stays double, because a cast is an operation like any other and is answered here. Operations that
compute with fewer bits all the same are remembered. Random numbers can be put to rest: then an
operation that draws gives what it gives on average.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from tasuki.data.generators import TORCH

LOW = frozenset({torch.float16, torch.bfloat16, torch.float32})
_MOST_DEEP = 8
_NO_DRAWS = ("_fused_sdp_choice",)


class InDouble(TorchDispatchMode):
    """All operations inside, those of backward passes too."""

    def __init__(self, names: Mapping[int, str], *, is_random: bool) -> None:
        super().__init__()
        self._names = names
        self._is_random = is_random
        self._inside: list[str] = []
        self.drawn: dict[str, str] = {}
        """By module (the innermost; "" is the loss itself): which operation drew."""
        self.low: dict[str, str] = {}
        """By module: an operation that computed with fewer bits."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if kwargs.get("dtype") in LOW:
            kwargs = {**kwargs, "dtype": torch.float64}
        if torch.Tag.nondeterministic_seeded in func.tags:
            found = self._draw(func, args, kwargs)
        else:
            found = func(*args, **kwargs)
        if isinstance(found, Tensor) and found.dtype in LOW:
            self.low.setdefault(self._where(), _name(func))
        return found

    def _draw(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name = _name(func)
        before = None if kwargs.get("generator") is not None else TORCH.keep()
        found = func(*args, **kwargs)
        is_drawn = before is None or not _is_same(before, TORCH.keep())
        if not is_drawn or name in _NO_DRAWS:
            return found
        self.drawn.setdefault(self._where(), name)
        return found if self._is_random else _on_average(name, found, args)

    def _where(self) -> str:
        return self._inside[-1] if self._inside else ""

    def enter(self, module: nn.Module, *_: Any) -> None:
        """A hook before each module's pass."""
        self._inside.append(self._names.get(id(module), self._where()))

    def leave(self, *_: Any) -> None:
        if self._inside:
            self._inside.pop()


def _is_same(one: Any, other: Any) -> bool:
    return bool(torch.equal(one, other)) if isinstance(one, Tensor) else bool(one == other)


def _name(func: Any) -> str:
    return str(func._schema.name).rpartition("::")[2]


def _on_average(name: str, found: Any, args: tuple[Any, ...]) -> Any:
    """What the operation gives on average, written over what it drew: the same for every sample,
    whatever its place in a batch."""
    if not isinstance(found, Tensor):
        return found
    numbers = [arg for arg in args if isinstance(arg, int | float) and not isinstance(arg, bool)]
    tensors = [arg for arg in args if isinstance(arg, Tensor)]
    plain = name.rstrip("_").removesuffix("_like")
    if plain == "bernoulli" and numbers:
        return found.fill_(numbers[0])
    if plain in ("bernoulli", "poisson"):
        return found.copy_(tensors[-1]) if name.endswith("_") else tensors[-1].clone()
    if plain == "uniform":
        return found.fill_(sum(numbers[:2]) / 2 if len(numbers) > 1 else 0.5)
    if plain == "normal":
        return found.copy_(tensors[0]) if not name.endswith("_") and tensors else found.fill_(0)
    if plain == "randperm":
        return torch.arange(len(found), dtype=found.dtype)
    return found.fill_({"rand": 0.5, "exponential": 1.0}.get(plain, 0))


def model_to_double(model: nn.Module) -> None:
    """Parameters, buffers, and tensors that are neither."""
    model.double()
    for module in model.modules():
        for name, value in list(vars(module).items()):
            if isinstance(value, Tensor) and value.dtype in LOW:
                vars(module)[name] = value.double()


def to_double(batch: Any) -> Any:
    """Every tensor of few bits in a batch, however nested."""
    return map_tensors(batch, lambda tensor: tensor.double() if tensor.dtype in LOW else tensor)


def map_tensors(batch: Any, change: Callable[[Tensor], Tensor], depth: int = 0) -> Any:
    """The same batch with other tensors."""

    def again(value: Any) -> Any:
        return map_tensors(value, change, depth + 1)

    if isinstance(batch, Tensor):
        return change(batch)
    if depth > _MOST_DEEP:
        return batch
    if isinstance(batch, Mapping):
        kind: Any = type(batch)
        return kind({key: again(value) for key, value in batch.items()})
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*map(again, batch))
    if isinstance(batch, list | tuple):
        return type(batch)(map(again, batch))
    if is_dataclass(batch) and not isinstance(batch, type):
        return replace(batch, **{f.name: again(getattr(batch, f.name)) for f in fields(batch)})
    if callable(getattr(batch, "apply", None)):  # torch_geometric's
        return batch.apply(change)
    return batch
