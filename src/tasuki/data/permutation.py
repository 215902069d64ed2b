"""Shuffle range(size) by a key, without storing the shuffle.

Any place of the shuffle is computed in O(1) time and memory, and so is its inverse: this is what
lets a run seek to a step instead of replaying an epoch. Not cryptography: it mixes well enough for
training data, and hides nothing.

The definition is part of the order's format (order.py): it must never change under one format
number. It uses unsigned 64-bit integers with wrap-around only, so platforms and numpy versions
agree.

    size n, key (bytes); n <= 1 is the identity
    a = ceil(sqrt(n)), b = ceil(n / a)                 a grid of a x b cells, a*b - n < a
    k[0..11] = the first 12 little-endian 64-bit words of
               blake2b(b"\\x00" + key) ++ blake2b(b"\\x01" + key)       (64-byte digests)
    mix(z)     = the finaliser of splitmix64:  z ^= z >> 30; z *= 0xBF58476D1CE4E5B9;
                 z ^= z >> 27; z *= 0x94D049BB133111EB; z ^= z >> 31
    draw(z, m) = ((mix(z) >> 32) * m) >> 32            a number below m
    round(x):  l, r = x div b, x mod b
               for i = 0 .. 11:  i even: l = (l + draw(r ^ k[i], a)) mod a
                                 i odd:  r = (r + draw(l ^ k[i], b)) mod b
               return l * b + r
    at(x):     x = round(x), again while x >= n        (cycle walking: again with probability < a/n)

12 rounds because buckets may be tiny: with truly random draws, the exact distance (total
variation) from a uniform shuffle of a 3 x 2 grid is 9 % after 8 rounds and 2.4 % after 12; of a
2 x 2 grid 0.5 % and 0.03 %. Where a and b are both odd and n = a*b (9, 15, 25, ...) only even
permutations occur, which no training can notice.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Words = NDArray[np.uint64]

MAX_SIZE = 2**62
"""Above it `draw` could wrap around."""

_ROUNDS = 12
_MULTIPLIERS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
_SHIFTS = (30, 27, 31)
_MASK = 2**64 - 1

# Typed, as numpy 1 may turn uint64 with a Python int into float64; arrays without dimension, as
# numpy takes them faster than its scalars (a shift of a short array: 0.4 against 0.9 µs).
_M1, _M2 = (np.array(value, dtype=np.uint64) for value in _MULTIPLIERS)
_S1, _S2, _S3 = (np.array(value, dtype=np.uint64) for value in _SHIFTS)
_HALF = np.array(32, dtype=np.uint64)


def mix_words(words: Words) -> Words:
    """splitmix64's finaliser, in place (arrays wrap around silently, numpy scalars would warn)."""
    scratch = words >> _S1
    words ^= scratch
    words *= _M1
    np.right_shift(words, _S2, out=scratch)
    words ^= scratch
    words *= _M2
    np.right_shift(words, _S3, out=scratch)
    words ^= scratch
    return words


def mix_word(word: int) -> int:
    """The same for one Python int: many times faster than an array of one."""
    word ^= word >> _SHIFTS[0]
    word = word * _MULTIPLIERS[0] & _MASK
    word ^= word >> _SHIFTS[1]
    word = word * _MULTIPLIERS[1] & _MASK
    return word ^ word >> _SHIFTS[2]


class KeyedPermutation:
    """A shuffle of range(size) that is a pure function of its key."""

    __slots__ = ("columns", "round_keys", "rows", "size")

    def __init__(self, size: int, key: bytes) -> None:
        assert 0 <= size <= MAX_SIZE, size
        self.size = size
        self.rows = math.isqrt(size - 1) + 1 if size else 1
        self.columns = max(1, -(-size // self.rows))
        digest = b"".join(hashlib.blake2b(half + key).digest() for half in (b"\0", b"\1"))
        self.round_keys: Words = np.frombuffer(digest, dtype="<u8")[:_ROUNDS].astype(np.uint64)

    def at(self, positions: Ints) -> Ints:
        """What stands at these positions of the shuffle."""
        return _walk(positions, _Grid.of([self], None), _round)

    def position_of(self, values: Ints) -> Ints:
        """Where these values stand in the shuffle: the inverse of `at`."""
        return _walk(values, _Grid.of([self], None), _round_back)


def permute_each(permutations: Sequence[KeyedPermutation], which: Ints, positions: Ints) -> Ints:
    """`permutations[which[i]].at(positions[i])` for all i in one pass.

    A block of steps may touch hundreds of buckets; a pass takes at least 0.1 to 0.2 ms.
    """
    return _walk(positions, _Grid.of(permutations, which), _round)


def position_of_each(permutations: Sequence[KeyedPermutation], which: Ints, values: Ints) -> Ints:
    """`permutations[which[i]].position_of(values[i])` for all i in one pass."""
    return _walk(values, _Grid.of(permutations, which), _round_back)


@dataclass(frozen=True, slots=True, eq=False)
class _Grid:
    """The numbers of the permutation that applies to each element, or of the one for all."""

    size: Words
    rows: Words
    columns: Words
    keys: Words
    """(rounds, permutations): picked by `which` round by round, to stay within a small memory."""
    which: Ints | None
    """None: one permutation for all elements; the numbers are arrays without dimension."""

    @classmethod
    def of(cls, permutations: Sequence[KeyedPermutation], which: Ints | None) -> Self:
        if len(permutations) == 1:
            which = None
        numbers = [[p.size, p.rows, p.columns] for p in permutations]
        table: Words = np.array(numbers, dtype=np.uint64)
        chosen = 0 if which is None else which
        keys = np.stack([p.round_keys for p in permutations], axis=1)
        return cls(table[chosen, 0, ...], table[chosen, 1, ...], table[chosen, 2, ...], keys, which)

    def key(self, number: int) -> Words:
        chosen = 0 if self.which is None else self.which
        key: Words = self.keys[number, chosen, ...]
        return key

    def take(self, part: Ints) -> _Grid:
        if self.which is None:
            return self
        return _Grid(
            self.size[part], self.rows[part], self.columns[part], self.keys, self.which[part]
        )


def _walk(values: Ints, grid: _Grid, once: Callable[[Words, _Grid], Words]) -> Ints:
    """Apply `once` until every value is below its size again."""
    words = np.asarray(values, dtype=np.int64).ravel().astype(np.uint64)
    if (words >= grid.size).any():  # a negative value has become a huge one
        raise IndexError("a position outside the permutation")
    words = once(words, grid)
    outside = np.flatnonzero(words >= grid.size)
    while outside.size:
        part = grid.take(outside)
        words[outside] = again = once(words[outside], part)
        outside = outside[again >= part.size]
    return words.astype(np.int64).reshape(np.shape(values))


def _round(words: Words, grid: _Grid) -> Words:
    left = words // grid.columns
    right = words - left * grid.columns
    for number in range(_ROUNDS):
        if number % 2 == 0:
            left += _draw(right ^ grid.key(number), grid.rows)
            _wrap(left, grid.rows)
        else:
            right += _draw(left ^ grid.key(number), grid.columns)
            _wrap(right, grid.columns)
    return left * grid.columns + right


def _round_back(words: Words, grid: _Grid) -> Words:
    left = words // grid.columns
    right = words - left * grid.columns
    for number in reversed(range(_ROUNDS)):
        if number % 2 == 0:
            left += grid.rows - _draw(right ^ grid.key(number), grid.rows)
            _wrap(left, grid.rows)
        else:
            right += grid.columns - _draw(left ^ grid.key(number), grid.columns)
            _wrap(right, grid.columns)
    return left * grid.columns + right


def _draw(words: Words, below: Words) -> Words:
    """A number below `below` for each word; a multiplication, as 64-bit division is slow."""
    mix_words(words)
    words >>= _HALF
    words *= below
    words >>= _HALF
    return words


def _wrap(words: Words, modulus: Words) -> None:
    """Words below 2 * modulus, modulo it: what is below wraps around to a huge number."""
    np.minimum(words, words - modulus, out=words)
