"""Which chunks of a token folder are for training, validation and test.

    number = mix(mix(chunk ^ k0) ^ k1)
    k0, k1 = the first two words of blake2b("tasuki tokens" + the seed in decimal), little-endian
    train below 2^64 · f_train, val below 2^64 · (f_train + f_val), test above

mix is splitmix64's finaliser (permutation.py). Only the number of a chunk counts, so it keeps its
part when documents are added at the end. The definition is a promise and must never change.
Chunks of one document may lie on both sides: who minds tokenises each part from files of its own,
into FOLDER/train, FOLDER/val and FOLDER/test.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from tasuki.data.permutation import mix_words
from tasuki.errors import DataError

PARTS = ("train", "val", "test")
SHARES = (0.98, 0.01, 0.01)
Ints = NDArray[np.int64]


def chunks_of(split: str, *, num_chunks: int, shares: Sequence[float], seed: int) -> Ints:
    """The chunks of a part, ascending."""
    limits = _limits(split, shares)
    key = hashlib.blake2b(b"tasuki tokens" + str(seed).encode()).digest()
    first, second = np.frombuffer(key[:16], dtype="<u8").astype(np.uint64)
    numbers = mix_words(np.arange(num_chunks, dtype=np.uint64) ^ first)
    numbers = mix_words(numbers ^ second)
    place = PARTS.index(split)
    chosen = ~_below(numbers, limits[place]) & _below(numbers, limits[place + 1])
    return np.flatnonzero(chosen).astype(np.int64)


def _limits(split: str, shares: Sequence[float]) -> list[int]:
    if split not in PARTS:
        raise DataError(
            f"there is no part `{split}` of tokens", hint=f"there are {', '.join(PARTS)}"
        )
    # As they are written: 0.1 is a tenth, not the nearest binary number.
    fractions = [Fraction(str(share)) for share in shares]
    if len(fractions) != len(PARTS) or min(fractions) < 0 or sum(fractions) != 1:
        raise DataError(
            f"shares {tuple(shares)} are not those of train, val and test",
            hint="three numbers that add up to 1, such as (0.98, 0.01, 0.01)",
        )
    return [int(sum(fractions[:number], Fraction(0)) * 2**64) for number in range(len(PARTS) + 1)]


def _below(numbers: NDArray[np.uint64], limit: int) -> NDArray[np.bool_]:
    if limit >= 2**64:
        return np.ones(len(numbers), dtype=bool)
    return numbers < np.uint64(limit)
