"""A loader of the user's own that ends its passes early: for rehearsals."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def may_be_left_early(loader: Any) -> bool:
    """Not one with a state of its own, which may begin its next pass where the last one was left;
    torchdata's begins anew."""
    is_torchdatas = type(loader).__module__.partition(".")[0] == "torchdata"
    return is_torchdatas or not hasattr(loader, "state_dict")


class ShortLoader:
    """The first batches of each pass through a loader; for the rest it is that loader."""

    def __init__(self, loader: Any, batches: int) -> None:
        # By way of the dict: what is set from outside goes to the loader itself.
        self.__dict__.update(whole=loader, batches=batches)

    def __len__(self) -> int:
        return int(self.__dict__["batches"])

    def __iter__(self) -> Iterator[Any]:
        return _ShortPass(iter(self.__dict__["whole"]), len(self))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["whole"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.__dict__["whole"], name, value)


class _ShortPass:
    """One pass; whoever ends a loader's workers asks it for them."""

    def __init__(self, batches: Iterator[Any], num_left: int) -> None:
        self._whole, self._num_left = batches, num_left

    def __iter__(self) -> _ShortPass:
        return self

    def __next__(self) -> Any:
        if not self._num_left:
            raise StopIteration
        self._num_left -= 1
        return next(self._whole)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_whole"], name)
