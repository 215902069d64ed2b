"""The host's global random numbers: Python's, numpy's and torch's, each as the memory it lies in.

Python's and numpy's own ways of reading a state make 625 objects of it: 11 and 43 µs, and 58 µs to
put numpy's back, for every micro-batch. All three are Mersenne twisters, 624 words and a place in
them, with a normal number that may wait beside (they are drawn in pairs); so here their memory is
copied as it is: an *image*. Whether it lies where this file looks is proved before it is used, by
content and where that is not enough by writing to a generator of our own; where it does not, the
generators' own ways are taken, and they cannot be watched (watched.py).
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

CALM = 0x7A5C1
"""The seed of the state that a generator has while it is watched."""
_TWISTER = 4 * 625
_TORCH_WORDS = 24, 24 + 8 * 624
"""Where they are in what torch's `get_state` gives, eight bytes each."""
_TORCH_BEFORE, _TORCH_BEHIND = 20, 24
"""In a generator: seed and place before the words, normal numbers that wait behind them."""
_TORCH_IMAGE = _TORCH_BEFORE + 4 * 624 + _TORCH_BEHIND
_TORCH_HEAD = 256
"""How far from its beginning a generator's words are looked for."""


class Generator(Protocol):
    def seed(self, seed: int) -> None: ...

    def keep(self) -> Any:
        """Its state, for `put`."""
        ...

    def put(self, kept: Any) -> None: ...


class PythonGenerator:
    """`random`: the place, then the words, right behind the head of its object."""

    def __init__(self) -> None:
        self._random: Any = random.seed.__self__  # type: ignore[attr-defined]
        self.image = _memory_at(id(self._random) + object.__basicsize__, _TWISTER)
        self.calm = _python_bytes(random.Random(CALM))
        self.can_be_watched = bytes(self.image) == _python_bytes(self._random)

    @property
    def waiting(self) -> float | None:
        """A second normal number."""
        number: float | None = self._random.gauss_next
        return number

    def seed(self, seed: int) -> None:
        self._random.seed(seed)

    def keep(self) -> Any:
        if not self.can_be_watched:
            return self._random.getstate()
        return bytes(self.image), self._random.gauss_next

    def put(self, kept: Any) -> None:
        if not self.can_be_watched:
            self._random.setstate(kept)
            return
        self.image[:], self._random.gauss_next = kept


class NumpyGenerator:
    """`np.random`: words, then the place; the normal number that waits lies in another object."""

    def __init__(self) -> None:
        self.calm = _numpy_bytes(RandomState(CALM).get_state())
        place = _place_in_numpy()
        self.waiting = None if place is None else _memory_at(id(_numpy_global()) + place, 16)
        """Whether a number does, and which."""
        self.find()

    def find(self) -> None:
        """Whoever sets another bit generator moves the words."""
        self.bits = get_bit_generator()
        self._has_image = False
        if type(self.bits) is MT19937 and self.waiting is not None:
            self.image = _memory_at(self.bits.ctypes.state_address, _TWISTER)
            self._has_image = bytes(self.image) == _numpy_bytes(np.random.get_state())

    @property
    def can_be_watched(self) -> bool:
        if get_bit_generator() is not self.bits:
            self.find()
        return self._has_image

    def seed(self, seed: int) -> None:
        np.random.seed(seed & 0xFFFFFFFF)

    def keep(self) -> Any:
        if not self.can_be_watched:
            return np.random.get_state()
        assert self.waiting is not None
        return bytes(self.image), bytes(self.waiting)

    def put(self, kept: Any) -> None:
        if not self.can_be_watched or not isinstance(kept[0], bytes):
            np.random.set_state(kept)
            return
        assert self.waiting is not None
        self.image[:], self.waiting[:] = kept


class TorchGenerator:
    """torch's on the CPU: seed, place, words, and the normal numbers that wait."""

    def __init__(self) -> None:
        self._generator: Any = torch.default_generator
        place = _place_in_torch()
        self.can_be_watched = place is not None
        if place is not None:
            self.image = _torch_image(self._generator, place)
            self._quiet = torch.Generator().manual_seed(CALM)
            self.calm = bytes(_torch_image(self._quiet, place))

    def seed(self, seed: int) -> None:
        self._generator.manual_seed(seed)

    def keep(self) -> Any:
        return bytes(self.image) if self.can_be_watched else self._generator.get_state()

    def put(self, kept: Any) -> None:
        if self.can_be_watched:
            self.image[:] = kept
        else:
            self._generator.set_state(kept)


def _memory_at(address: int, size: int) -> memoryview:
    return memoryview((ctypes.c_char * size).from_address(address)).cast("B")


def _python_bytes(generator: random.Random) -> bytes:
    *words, index = generator.getstate()[1]
    return array("i", [index]).tobytes() + array("I", words).tobytes()


def _numpy_bytes(state: Any) -> bytes:
    words, place = state[1:3]
    return bytes(words.tobytes()) + array("i", [place]).tobytes()


def _numpy_global() -> Any:
    return np.random.mtrand._rand


def _place_in_numpy() -> int | None:
    """Where in a RandomState the number lies that waits, and before it whether one does."""
    tried: Any = RandomState(CALM)
    tried.standard_normal()
    waiting = tried.get_state()[4]
    memory = _memory_at(id(tried), type(tried).__basicsize__)
    at = bytes(memory).find(array("d", [waiting]).tobytes()) - 8
    if at < 0 or memory[at : at + 4].cast("i")[0] != 1:
        return None
    memory[at : at + 16] = bytes(16)
    return at if tried.get_state()[3:] == (0, 0.0) else None


def _torch_image(generator: Any, place: int) -> memoryview:
    return _memory_at(generator._cdata + place, _TORCH_IMAGE)


def _place_in_torch() -> int | None:
    """Where in a generator its image begins; None: this torch keeps it in another way."""
    tried = torch.Generator().manual_seed(1 << 40 | 9)
    state = tried.get_state().numpy().tobytes()
    if not getattr(tried, "_cdata", None) or len(state) < _TORCH_WORDS[1]:
        return None
    words = array("I", array("Q", state[slice(*_TORCH_WORDS)])).tobytes()
    near = bytes(_memory_at(tried._cdata, _TORCH_HEAD + len(words)))  # type: ignore[attr-defined]
    place = near.find(words) - _TORCH_BEFORE
    return place if place >= 0 and _is_whole(place) else None


def _is_whole(place: int) -> bool:
    """Is a generator with the image of another one that other one? Each kind of number that waits
    is tried."""
    for count, dtype in ((0, None), (3, None), (1, torch.float32), (1, torch.float64)):
        one, other = torch.Generator().manual_seed(1 << 40 | 5), torch.Generator().manual_seed(2)
        if dtype is None:
            torch.randint(9, (count,), generator=one)
        else:
            torch.randn(count, generator=one, dtype=dtype)
        _torch_image(other, place)[:] = _torch_image(one, place)
        if not one.get_state().equal(other.get_state()):
            return False
    return True


PYTHON, NUMPY, TORCH = PythonGenerator(), NumpyGenerator(), TorchGenerator()
HOST: tuple[Generator, ...] = (PYTHON, NUMPY, TORCH)
