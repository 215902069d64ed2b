"""The host's global random numbers, kept, put back and watched in about a microsecond.

Python's and numpy's own ways of reading a state make 625 objects of it: 11 and 43 µs, and 58 µs to
put numpy's back, for every micro-batch. Both are Mersenne twisters, 624 words and a place in them,
so here their memory is copied as it is. Whether it lies where this file looks is compared with what
the generator itself says before it is used; where it does not, the slow ways are taken and nothing
is watched.

A generator that is made *calm* stands in one fixed state. Whoever draws from it moves it, so that a
look tells afterwards whether anybody did (drawn.py).
"""

from __future__ import annotations

import ctypes
import random
from array import array
from typing import Any, Protocol

import numpy as np
import torch
from numpy.random import MT19937, RandomState
from numpy.random.mtrand import get_bit_generator

_CALM = 0x7A5C1
_BYTES = 4 * 625


class Generator(Protocol):
    def seed(self, seed: int) -> None: ...

    def keep(self) -> Any:
        """Its state, for `put`."""
        ...

    def put(self, kept: Any) -> None: ...


class PythonGenerator:
    """`random`: an index, then the words, right behind the head of its object."""

    def __init__(self) -> None:
        self._random: Any = random.seed.__self__  # type: ignore[attr-defined]
        self._memory = _memory_at(id(self._random) + object.__basicsize__)
        self._calm = _python_bytes(random.Random(_CALM))
        self.can_be_watched = bytes(self._memory) == _python_bytes(self._random)

    def seed(self, seed: int) -> None:
        self._random.seed(seed)

    def keep(self) -> Any:
        if not self.can_be_watched:
            return self._random.getstate()
        return bytes(self._memory), self._random.gauss_next

    def put(self, kept: Any) -> None:
        if not self.can_be_watched:
            self._random.setstate(kept)
            return
        self._memory[:], self._random.gauss_next = kept

    def calm(self) -> None:
        self._memory[:], self._random.gauss_next = self._calm, None

    def is_calm(self) -> bool:
        return bytes(self._memory) == self._calm  # as views: twenty times slower


class NumpyGenerator:
    """`np.random`: words, then the place. Whether a second normal number waits beside them (they
    are drawn in pairs) only numpy itself tells; but if none did, and no word has changed since,
    none does."""

    def __init__(self) -> None:
        self._calm = _numpy_bytes(RandomState(_CALM).get_state())
        self._find()

    def _find(self) -> None:
        self._bits = get_bit_generator()
        self._single: bytes | None = None
        """Words that were seen with no number waiting."""
        self._is_readable = False
        if type(self._bits) is MT19937:
            self._memory = _memory_at(self._bits.ctypes.state_address)
            self._is_readable = bytes(self._memory) == _numpy_bytes(np.random.get_state())

    @property
    def can_be_watched(self) -> bool:
        if get_bit_generator() is not self._bits:
            self._find()
        return self._is_readable

    def seed(self, seed: int) -> None:
        np.random.seed(seed & 0xFFFFFFFF)

    def keep(self) -> Any:
        if not self.can_be_watched:
            return np.random.get_state()
        words = bytes(self._memory)
        if words != self._single:
            self._single = None
            state: Any = np.random.get_state()
            if state[3]:
                return state
            self._single = words
        return words

    def keep_words(self) -> Any:
        """A second normal number that waits is not kept, and numpy never asked for it."""
        return bytes(self._memory) if self.can_be_watched else np.random.get_state()

    def put(self, kept: Any) -> None:
        if not isinstance(kept, bytes):
            np.random.set_state(kept)
            return
        if not self.is_calm():
            np.random.seed(0)  # takes away a number that waits
        self._memory[:] = kept

    def calm(self) -> None:
        if self._single is None:
            np.random.seed(0)
        self._memory[:] = self._calm

    def is_calm(self) -> bool:
        return bytes(self._memory) == self._calm  # as views: twenty times slower

    def forget(self) -> None:
        """Somebody has set the state."""
        self._single = None


class TorchGenerator:
    def __init__(self) -> None:
        self._generator = torch.default_generator
        self._calm = torch.Generator().manual_seed(_CALM).get_state()
        self._calm_bytes = self._calm.numpy().tobytes()

    def seed(self, seed: int) -> None:
        self._generator.manual_seed(seed)

    def keep(self) -> Any:
        return self._generator.get_state()

    def put(self, kept: Any) -> None:
        self._generator.set_state(kept)

    def calm(self) -> None:
        self._generator.set_state(self._calm)

    def is_calm(self) -> bool:
        # torch.equal takes five times as long.
        words: bytes = self._generator.get_state().numpy().tobytes()
        return words == self._calm_bytes


def _memory_at(address: int) -> memoryview:
    return memoryview((ctypes.c_char * _BYTES).from_address(address)).cast("B")


def _python_bytes(generator: random.Random) -> bytes:
    *words, index = generator.getstate()[1]
    return array("i", [index]).tobytes() + array("I", words).tobytes()


def _numpy_bytes(state: Any) -> bytes:
    words, place = state[1:3]
    return bytes(words.tobytes()) + array("i", [place]).tobytes()


PYTHON, NUMPY, TORCH = PythonGenerator(), NumpyGenerator(), TorchGenerator()
HOST: tuple[Generator, ...] = (PYTHON, NUMPY, TORCH)


def can_be_watched() -> bool:
    return PYTHON.can_be_watched and NUMPY.can_be_watched


def keep_all() -> tuple[Any, Any, Any]:
    return PYTHON.keep(), NUMPY.keep(), TORCH.keep()


def put_all(kept: tuple[Any, Any, Any]) -> None:
    PYTHON.put(kept[0])
    NUMPY.put(kept[1])
    TORCH.put(kept[2])


def calm_all() -> None:
    """After `keep_all`, of what can be watched."""
    PYTHON.calm()
    NUMPY.calm()
    TORCH.calm()


def are_calm() -> bool:
    """Nobody has drawn since `calm_all`."""
    return PYTHON.is_calm() and NUMPY.is_calm() and TORCH.is_calm()
