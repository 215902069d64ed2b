"""The host's global random numbers, kept, put back and watched in about a microsecond.

Python's and numpy's own ways of reading a state make 625 objects of it: 11 and 43 µs, and 58 µs to
put numpy's back, for every micro-batch. Both are Mersenne twisters, 624 words and a place in them,
so here their memory is copied as it is. Whether it lies where this file looks is compared with what
the generator itself says before it is used; where it does not, the slow ways are taken and nothing
is watched.

A generator that is made *calm* stands in one fixed state. Whoever draws from it moves it, so that a
look tells afterwards whether anybody did. Called by drawn.py; fetch.py keeps the states with it.
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
    can_be_watched: bool

    def seed(self, seed: int) -> None: ...

    def keep(self) -> Any:
        """Its state, for `put`."""
        ...

    def put(self, kept: Any) -> None: ...

    def calm(self, kept: Any) -> None:
        """Into the fixed state; `kept` is the state of now."""
        ...

    def is_calm(self) -> bool:
        """Nobody has drawn since `calm`."""
        ...


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

    def calm(self, kept: Any) -> None:  # noqa: ARG002 (the port has it)
        self._memory[:], self._random.gauss_next = self._calm, None

    def is_calm(self) -> bool:
        return bytes(self._memory) == self._calm

    def words(self) -> bytes:
        return bytes(self._memory)

    def has_number_waiting(self) -> bool:
        return self._random.gauss_next is not None


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
        self.can_be_watched = False
        if type(self._bits) is MT19937:
            self._memory = _memory_at(self._bits.ctypes.state_address)
            self.can_be_watched = bytes(self._memory) == _numpy_bytes(np.random.get_state())

    def seed(self, seed: int) -> None:
        np.random.seed(seed & 0xFFFFFFFF)

    def keep(self) -> Any:
        if get_bit_generator() is not self._bits:
            self._find()
        state: Any = np.random.get_state()
        self._single = None
        if not self.can_be_watched or state[3]:
            return state
        self._single = bytes(self._memory)
        return self._single

    def keep_words(self) -> Any:
        """In a hundredth of the time: a second normal number that waits is not kept."""
        if get_bit_generator() is not self._bits or not self.can_be_watched:
            return self.keep()
        return bytes(self._memory)

    def put(self, kept: Any) -> None:
        if not isinstance(kept, bytes):
            np.random.set_state(kept)
            return
        if not self.is_calm():
            np.random.seed(0)  # takes away a number that waits
        self._memory[:] = kept

    def calm(self, kept: Any) -> None:
        if not isinstance(kept, bytes):
            np.random.seed(0)
        self._memory[:] = self._calm

    def is_calm(self) -> bool:
        return bytes(self._memory) == self._calm

    def words(self) -> bytes:
        return bytes(self._memory)

    def has_no_number_waiting(self) -> bool:
        """As far as is known without asking numpy, which takes long."""
        is_known = self.can_be_watched and self._single is not None
        return is_known and get_bit_generator() is self._bits and self.words() == self._single

    def forget(self) -> None:
        """Somebody has set the state."""
        self._single = None


class TorchGenerator:
    can_be_watched = True

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

    def calm(self, kept: Any) -> None:  # noqa: ARG002 (the port has it)
        self._generator.set_state(self._calm)

    def is_calm(self) -> bool:
        return self.words() == self._calm_bytes

    def words(self) -> bytes:
        # To be compared: torch.equal takes five times as long.
        words: bytes = self._generator.get_state().numpy().tobytes()
        return words


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

Standing = tuple[bytes, bytes, bytes]


def where_all_stand() -> Standing | None:
    """The words of all three, to be compared with a later look; None where a second normal number
    may wait, which would be given out without moving any, or where words cannot be read."""
    if not PYTHON.can_be_watched or PYTHON.has_number_waiting():
        return None
    return words_of_all() if NUMPY.has_no_number_waiting() else None


def words_of_all() -> Standing:
    return PYTHON.words(), NUMPY.words(), TORCH.words()


def put_all(standing: Standing) -> None:
    PYTHON.put((standing[0], None))
    NUMPY.put(standing[1])
    TORCH.put(torch.frombuffer(bytearray(standing[2]), dtype=torch.uint8))
