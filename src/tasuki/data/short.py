"""A loader of the user's own that ends its passes early: for drills, in recipes and own loops."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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
        self.__dict__.update(whole=loader, batches=batches, taken=0, is_put_back=False)

    def __len__(self) -> int:
        return int(self.__dict__["batches"])

    def __iter__(self) -> Iterator[Any]:
        own = self.__dict__
        if not own["is_put_back"]:
            own["taken"] = 0
        own["is_put_back"] = False
        return _ShortPass(iter(own["whole"]), own)

    def __getattr__(self, name: str) -> Any:
        own = self.__dict__
        found = getattr(own["whole"], name)
        if name == "state_dict":
            return lambda: {"taken": own["taken"], "whole": found()}
        if name == "load_state_dict":
            return lambda state: self._put_back(state, found)
        return found

    def _put_back(self, state: Mapping[str, Any], load: Any) -> None:
        load(state["whole"])
        self.__dict__.update(taken=state["taken"], is_put_back=True)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.__dict__["whole"], name, value)


class _ShortPass:
    """One pass; whoever ends a loader's workers asks it for them."""

    def __init__(self, batches: Iterator[Any], counts: dict[str, Any]) -> None:
        self._whole, self._counts = batches, counts

    def __iter__(self) -> _ShortPass:
        return self

    def __next__(self) -> Any:
        if self._counts["taken"] >= self._counts["batches"]:
            raise StopIteration
        batch = next(self._whole)
        self._counts["taken"] += 1
        return batch

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_whole"], name)
