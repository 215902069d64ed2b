"""Answers for operations whose result depends on numbers: fake tensors have none.

Shapes that depend on the data get their upper bound (as many entries as there could be), so that
memory is never guessed too low; each kind is counted and told. What has no bound is taken as the
batch's own numbers have it (numbers.py), or refused by name. Numbers that code reads (`.item()`)
are the batch's where they come from it alone; else 1, and conditions true.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tasuki.errors import RecipeError
from tasuki.memory.numbers import Numbers, largest_of, number_of, sum_of

_ATEN: Any = torch.ops.aten
_MASKS = (torch.bool, torch.uint8)
Note = Callable[[Tensor], None]
_MOST_TRUE = 100
"""Conditions that are taken as true; beyond, every other one."""


class Untraceable(RecipeError):
    """An operation stands in the way of a trace."""

    def __init__(self, op: str, reason: str) -> None:
        super().__init__(
            f"`{op}` cannot be traced without its numbers: {reason}",
            hint="measure instead: the first steps of a run tell their memory",
        )
        self.op, self.reason = op, reason


class Bounds:
    """Answers, and counts them."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.numbers = Numbers()
        self._has_read = False
        """Numbers that are known."""
        self._num_conditions = 0
        self._answers: dict[Any, Callable[..., Any]] = {
            _ATEN.nonzero.default: _nonzero,
            _ATEN.masked_select.default: _masked_select,
            _ATEN._unique2.default: _unique,
            _ATEN._unique.default: lambda *args, **named: _unique(*args, **named)[:2],
            _ATEN.unique_dim.default: _unique_dim,
            _ATEN.unique_consecutive.default: _unique_consecutive,
            _ATEN._local_scalar_dense.default: _scalar,
            _ATEN.mkldnn_rnn_layer.default: _refuse_recurrent,
        }
        self._reads: dict[Any, Callable[..., Any]] = {
            _ATEN.bincount.default: self._bincount,
            _ATEN.repeat_interleave.Tensor: self._repeat_interleave,
        }
        self._copies: dict[int, tuple[int, int]] = {}
        """Storage of a clone: (storage it was made of, when)."""
        self._written: dict[int, int] = {}
        self._now = 0

    def answer(self, func: Any, args: Any, kwargs: Any, *, note: Note) -> Any:
        """NotImplemented: the operation itself knows."""
        if func is _ATEN.allclose.default:
            return self._condition(func)
        if func is _ATEN.equal.default:
            return self._are_equal(args[0], args[1])
        if func is _ATEN.index.Tensor:
            return self._index(func, args, note)
        if func in self._reads:
            return self._reads[func](*args, **kwargs)
        if func is _ATEN._local_scalar_dense.default:
            value = self._read(args[0])
            if value is not None:
                return number_of(value)
            if args[0].dtype == torch.bool:
                return self._condition(func)
        known = self._answers.get(func)
        if known is None:
            return NotImplemented
        self._tell(func)
        return known(*args, **kwargs)

    def _tell(self, func: Any) -> None:
        self.counts[str(func.name()).removeprefix("aten::").split(".")[0].strip("_")] += 1

    def in_words(self) -> list[str]:
        """For the notes of a probe file."""
        counts = Counter(self.counts)
        read = counts.pop("local_scalar_dense", 0)
        found = []
        if counts:
            ops = ", ".join(sorted(counts))
            found.append(f"results that depend on the data are taken at their largest: {ops}")
        if read:
            found.append(
                "the code reads numbers from tensors (`.item()`), which a trace takes as 1: memory "
                "that hangs on them may differ"
            )
        if self._has_read:
            found.append(
                "the code reads numbers from the batch: memory that hangs on them is that of the "
                "samples it was traced with"
            )
        return found

    def _read(self, tensor: Tensor) -> Tensor | None:
        value = self.numbers.of(tensor)
        self._has_read = self._has_read or value is not None
        return value

    def _condition(self, func: Any) -> bool:
        """Code that draws again until a condition holds would never end."""
        self._tell(func)
        self._num_conditions += 1
        return self._num_conditions <= _MOST_TRUE or self._num_conditions % 2 == 0

    def _bincount(
        self, values: Tensor, weights: Tensor | None = None, minlength: int = 0
    ) -> Tensor:
        known = self._read(values)
        if known is not None:
            minlength = max(minlength, int(largest_of(known)) + 1)
        elif not minlength:
            raise Untraceable("bincount", "its length is the largest number in the data")
        else:
            self.counts["bincount"] += 1
        dtype = torch.int64 if weights is None else weights.dtype
        return values.new_empty(minlength, dtype=dtype)

    def _repeat_interleave(self, repeats: Tensor, *, output_size: int | None = None) -> Tensor:
        known = self._read(repeats) if output_size is None else None
        if known is not None:
            output_size = int(sum_of(known))
        elif output_size is None:
            raise Untraceable(
                "repeat_interleave", "without `output_size` its length is in the data"
            )
        return repeats.new_empty(output_size)

    def _index(self, func: Any, args: Any, note: Note) -> Any:
        """`x[mask]`: CUDA finds the true entries first."""
        if not any(isinstance(i, Tensor) and i.dtype in _MASKS for i in args[1]):
            return NotImplemented
        self._tell(func)
        indices: list[Any] = []
        for index in args[1]:
            if isinstance(index, Tensor) and index.dtype in _MASKS:
                places = _nonzero(index)
                note(places)
                indices += places.unbind(1)
            else:
                indices.append(index)
        return func(args[0], indices)

    # -- equality: a clone equals its original until one of them is written ----------------------

    def saw(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        """Every operation, afterwards."""
        self._now += 1
        self.numbers.follow(func, args, kwargs, out)
        if func is _ATEN.clone.default and _has_key(out):
            self._copies[_key(out)] = (_key(args[0]), self._now)
        for place in _written_by(func):
            if place < len(args) and _has_key(args[place]):
                self._written[_key(args[place])] = self._now

    def forget(self, key: int) -> None:
        """Another storage lies there now."""
        self._copies.pop(key, None)
        self._written.pop(key, None)

    def _are_equal(self, one: Tensor, other: Tensor) -> bool:
        for copy, original in ((_key(one), _key(other)), (_key(other), _key(one))):
            source, since = self._copies.get(copy, (None, 0))
            if source == original:
                latest = max(self._written.get(key, 0) for key in (copy, original))
                return latest <= since
        return False


def _has_key(value: object) -> bool:
    """A sparse tensor has no storage of its own."""
    return isinstance(value, Tensor) and value.layout == torch.strided


def _key(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


_WRITTEN: dict[Any, tuple[int, ...]] = {
    # It moves its running means, and its schema does not say so.
    _ATEN.native_batch_norm.default: (3, 4),
}


def _written_by(func: Any) -> tuple[int, ...]:
    places = _WRITTEN.get(func)
    if places is None:
        arguments = func._schema.arguments
        places = tuple(
            i for i, a in enumerate(arguments) if a.alias_info is not None and a.alias_info.is_write
        )
        _WRITTEN[func] = places
    return places


def _nonzero(mask: Tensor) -> Tensor:
    return torch.empty(mask.numel(), mask.dim(), dtype=torch.int64, device=mask.device)


def _masked_select(values: Tensor, mask: Tensor) -> Tensor:
    return values.new_empty(torch.broadcast_shapes(values.shape, mask.shape).numel())


def _counts(values: Tensor, num: int, *, is_wanted: bool) -> Tensor:
    return values.new_empty(num if is_wanted else 0, dtype=torch.int64)


def _unique(
    values: Tensor,
    sorted: bool = True,  # noqa: ARG001 (as torch names it)
    return_inverse: bool = False,
    return_counts: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    num = values.numel()
    shape = values.shape if return_inverse else (0,)
    inverse = values.new_empty(shape, dtype=torch.int64)
    return values.new_empty(num), inverse, _counts(values, num, is_wanted=return_counts)


def _unique_dim(
    values: Tensor,
    dim: int,
    sorted: bool = True,  # noqa: ARG001 (as torch names it)
    return_inverse: bool = False,
    return_counts: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    num = values.shape[dim]
    inverse = _counts(values, num, is_wanted=return_inverse)
    return values.new_empty(values.shape), inverse, _counts(values, num, is_wanted=return_counts)


def _unique_consecutive(
    values: Tensor,
    return_inverse: bool = False,
    return_counts: bool = False,
    dim: int | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    if dim is not None:
        return _unique_dim(values, dim, True, return_inverse, return_counts)
    return _unique(values, True, return_inverse, return_counts)


def _scalar(value: Tensor) -> int | float:
    # A mean of losses is divided by a count: 0 would make code go another way, or fail.
    return 1.0 if value.dtype.is_floating_point else 1


def _refuse_recurrent(*_: Any, **__: Any) -> Any:
    raise Untraceable("mkldnn_rnn_layer", "oneDNN alone knows how much a recurrent layer keeps")
