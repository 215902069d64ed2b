"""All three of the host's generators at once, in as few operations as there can be.

A training asks for their states at every step and every micro-batch, and mostly nobody has drawn
since: a few words of each tell so, and what was kept last is given out again. So memory is only
copied where it has to be; the rest costs more by what it drives out of the caches than by itself.
A draw moves the place in the words, a new round of them changes the first and the last, and a
normal number that waits is looked at, too.

A generator that is made *calm* stands in one fixed state. Whoever draws from it moves it, so that a
look tells afterwards whether anybody did.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from numpy.random.mtrand import get_bit_generator

from tasuki.data.generators import HOST, NUMPY, PYTHON, TORCH

_RANDOM: Any = random.seed.__self__  # type: ignore[attr-defined]
_NONE_WAITS = bytes(16)

_Images = tuple[bytes, bytes, bytes, bytes]
"""Python's, numpy's, what waits beside numpy's, torch's."""


@dataclass(frozen=True, slots=True)
class Kept:
    """The states of all three."""

    states: tuple[Any, ...]
    """As each generator takes it, where they cannot be watched."""
    images: _Images | None = None
    waiting: float | None = None
    """Beside Python's."""
    mark: tuple[Any, ...] | None = None
    """Changes when anybody draws."""


class Watched:
    """This process's generators."""

    def __init__(self) -> None:
        self._last: Kept | None = None
        self._find()

    def _find(self) -> None:
        self._bits: Any = get_bit_generator()
        self.is_possible = all(one.can_be_watched for one in (PYTHON, NUMPY, TORCH))
        """Else everything here is done in the generators' own ways, and nothing can be calm."""
        if not self.is_possible:
            return
        assert NUMPY.waiting is not None
        self._views = PYTHON.image, NUMPY.image, NUMPY.waiting, TORCH.image
        self._words = tuple(view.cast("I") for view in self._views)
        self._calm: _Images = PYTHON.calm, NUMPY.calm, _NONE_WAITS, TORCH.calm
        kept = self._images(), PYTHON.waiting
        self._put(self._calm, None)
        self._calm_mark = self._mark()
        self._put(*kept)

    def _images(self) -> _Images:
        python, numpy, waiting, torch = self._views
        return bytes(python), bytes(numpy), bytes(waiting), bytes(torch)

    def _put(self, images: _Images, waiting: float | None) -> None:
        self._views[0][:], self._views[1][:], self._views[2][:], self._views[3][:] = images
        _RANDOM.gauss_next = waiting

    def _mark(self) -> tuple[Any, ...]:
        python, numpy, waiting, torch = self._words
        return (
            python[0], python[1], python[624], _RANDOM.gauss_next,
            numpy[0], numpy[623], numpy[624], waiting[0], waiting[2], waiting[3],
            torch[0], torch[2], torch[4], torch[5], torch[628],
            torch[629], torch[630], torch[632], torch[633], torch[634],
        )  # fmt: skip

    def keep(self) -> Kept:
        """The states as they are now."""
        if get_bit_generator() is not self._bits:
            self._find()
        last = self._last
        if last is not None and last.mark is not None and last.mark == self._mark():
            return last
        if self.is_possible:
            last = Kept((), self._images(), PYTHON.waiting, self._mark())
        else:
            last = Kept(tuple(generator.keep() for generator in HOST))
        self._last = last
        return last

    def calm(self) -> None:
        """After `keep`, where it is possible."""
        self._put(self._calm, None)

    def are_calm(self) -> bool:
        """Nobody has drawn since."""
        return get_bit_generator() is self._bits and self._mark() == self._calm_mark

    def put(self, kept: Kept) -> None:
        """As they were, whatever has been drawn since."""
        if kept.images is not None:
            self._put(kept.images, kept.waiting)
            return
        for generator, state in zip(HOST, kept.states, strict=True):
            generator.put(state)


WATCHED = Watched()
