"""Numbers that a batch brings along, kept beside fake tensors, which have none.

Whole numbers of a batch often decide sizes: the longest sample, how many graphs there are, how
often a row is repeated. So operations on them, and on nothing else, are done for real as well; they
are few and small. What comes from weights, or from the floats of a batch, is never known.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.weak import WeakTensorKeyDictionary

_MOST_ENTRIES = 1 << 22
"""Of a tensor: nobody reads a size from more."""
_ATEN: Any = torch.ops.aten
_MADE = frozenset(
    {
        _ATEN.arange.default,
        _ATEN.arange.start,
        _ATEN.arange.start_step,
        _ATEN.zeros.default,
        _ATEN.ones.default,
        _ATEN.full.default,
    }
)
"""Of nothing but sizes."""


class Numbers:
    """What is known of fake tensors."""

    def __init__(self) -> None:
        self._known: Any = WeakTensorKeyDictionary()

    def learn(self, fake: Tensor, real: Tensor) -> None:
        """A tensor of a batch."""
        is_whole = not real.is_floating_point() and not real.is_complex()
        if is_whole and _is_small(real) and not isinstance(real, FakeTensor):
            with _disable_current_modes():
                self._known[fake] = real.detach().clone()

    def of(self, tensor: object) -> Tensor | None:
        if not isinstance(tensor, Tensor):
            return None
        found: Tensor | None = self._known.get(tensor)
        if found is None:  # a number that stands in the code
            found = tensor.constant if isinstance(tensor, FakeTensor) else tensor
            if found is None or found.is_floating_point() or not _is_small(found):
                return None
        return found

    def follow(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        """Every operation, afterwards. Views of what is known share its memory, as they should."""
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        known = [self.of(leaf) for leaf in given]
        if given and all(value is None for value in known):
            return
        results = [leaf for leaf in tree_leaves(out) if isinstance(leaf, Tensor)]
        is_known = all(value is not None for value in known) and all(map(_is_small, results))
        if is_known and (given or _is_made(func, results)) and _is_certain(func):
            self._compute(func, args, kwargs, out)
        elif func._schema.is_mutable:
            self._forget(func, args, kwargs)

    def _compute(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        real_args, real_kwargs = tree_map(
            lambda v: self.of(v) if isinstance(v, Tensor) else v, (args, kwargs)
        )
        found = None
        # A kernel that refuses them leaves them unknown.
        with contextlib.suppress(Exception), _disable_current_modes():
            found = func(*real_args, **real_kwargs)
        if found is None:
            self._forget(func, args, kwargs)
            return
        for fake, real in zip(tree_leaves(out), tree_leaves(found), strict=False):
            if isinstance(fake, Tensor) and isinstance(real, Tensor):
                self._known[fake] = real

    def _forget(self, func: Any, args: Any, kwargs: Any) -> None:
        """What is written with unknown numbers, and all that looks at the same memory."""
        for place, argument in enumerate(func._schema.arguments):
            if argument.alias_info is None or not argument.alias_info.is_write:
                continue
            value = args[place] if place < len(args) else kwargs.get(argument.name)
            for written in tree_leaves(value):
                if (real := self.of(written)) is not None:
                    self._forget_memory(real.untyped_storage()._cdata)

    def _forget_memory(self, key: int) -> None:
        for fake, real in list(self._known.items()):
            if real.untyped_storage()._cdata == key:
                del self._known[fake]


def number_of(value: Tensor) -> bool | int | float:
    with _disable_current_modes():
        return value.item()


def largest_of(value: Tensor) -> bool | int | float:
    with _disable_current_modes():
        return value.max().item() if value.numel() else -1


def sum_of(value: Tensor) -> bool | int | float:
    with _disable_current_modes():
        return value.sum().item()


def _is_small(tensor: Tensor) -> bool:
    return tensor.layout == torch.strided and tensor.numel() <= _MOST_ENTRIES


def _is_made(func: Any, results: list[Tensor]) -> bool:
    return func in _MADE and all(not r.is_floating_point() for r in results)


def _is_certain(func: Any) -> bool:
    """Neither random nor of whatever lies in memory."""
    return torch.Tag.nondeterministic_seeded not in func.tags and "empty" not in func.name()
