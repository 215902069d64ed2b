"""Which modules mix the samples of a batch?

A batch and a part of it are passed: a module that is given the same rows and gives others has
looked at the other samples. That can be seen only where rows are samples; of graphs that were
joined into one nothing is found.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from tasuki.train.equiv.batches import can_be_cut, cut
from tasuki.train.equiv.passes import Bench, Cause

_EQUAL = 1e-9
_MOST_ROUNDS = 4

_Seen = tuple[list[Tensor], list[Tensor]]
"""Inputs and outputs of a module's first pass."""


def find_statistics(bench: Bench, whole: Any, rows: Sequence[int], num: int) -> list[nn.Module]:
    """Modules that mix samples in training; and all others of their kinds, since behind the first
    of them nothing can be seen until it is put to rest."""
    by_kind = [m for m in bench.model.modules() if isinstance(m, _KINDS) and m.training]
    bench.statistics = list(by_kind)
    for _ in range(_MOST_ROUNDS):
        mixing = find_mixing(bench, whole, rows, num, frozenset())
        kinds = {type(module) for module in mixing}
        more = [m for m in bench.model.modules() if type(m) in kinds and m.training]
        fresh = [m for m in more if not any(m is known for known in bench.statistics)]
        if not fresh:
            break
        bench.statistics += fresh
    return bench.statistics


_KINDS = (nn.modules.batchnorm._BatchNorm,)


def find_mixing(
    bench: Bench, whole: Any, rows: Sequence[int], num: int, live: frozenset[Cause]
) -> list[nn.Module]:
    """The innermost modules that give other rows although they were given the same."""
    if not can_be_cut(whole, num) or len(rows) == num:
        return []
    try:
        every = _watch(bench, whole, live)
        some = _watch(bench, cut(whole, rows, num), live)
    except Exception:  # a loss that takes gradients itself, or a lone sample: nothing is seen
        return []
    chosen = torch.as_tensor(list(rows))
    found = [
        module
        for module in bench.model.modules()
        if id(module) in every
        and id(module) in some
        and _mixes(every[id(module)], some[id(module)], chosen, num)
    ]
    return [m for m in found if not any(child in found for child in list(m.modules())[1:])]


def _mixes(every: _Seen, some: _Seen, rows: Tensor, num: int) -> bool:
    given = [_are_same(*pair, rows, num) for pair in zip(every[0], some[0], strict=False)]
    made = [_are_same(*pair, rows, num) for pair in zip(every[1], some[1], strict=False)]
    return True in given and False not in given and False in made


def _are_same(whole: Tensor, part: Tensor, rows: Tensor, num: int) -> bool | None:
    """None: its rows are not samples."""
    if whole.dim() == 0 or len(whole) != num or len(part) != len(rows):
        return None
    if whole.shape[1:] != part.shape[1:]:
        return None
    expected = whole[rows]
    if not expected.is_floating_point():
        return bool(torch.equal(expected, part))
    scale = float(expected.abs().max()) if expected.numel() else 0.0
    gap = float((expected - part).abs().max()) if expected.numel() else 0.0
    return gap <= _EQUAL * scale


def _watch(bench: Bench, batch: Any, live: frozenset[Cause]) -> dict[int, _Seen]:
    seen: dict[int, _Seen] = {}

    def look(module: nn.Module, given: Any, named: Any, made: Any) -> None:
        inputs = [t.detach().clone() for t in _tensors((given, list(named.values())))]
        seen.setdefault(id(module), (inputs, [t.detach().clone() for t in _tensors(made)]))

    hooks = [m.register_forward_hook(look, with_kwargs=True) for m in bench.model.modules()]
    try:
        with bench.begun(live), torch.no_grad():
            bench.recipe.loss(bench.model, batch)
    finally:
        for hook in hooks:
            hook.remove()
    return seen


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _tensors(one)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))
