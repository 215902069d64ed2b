"""Which samples were used, as one number that ranks and attempts can add up.

Every checkpoint carries it for all steps of its stage so far; `tasuki verify samples` computes the
same from the order (sample_check.py). A sum, so that neither the number of ranks nor micro-batches
nor the order within a step matter, and ranks need not talk to each other: rank 0 adds what they
hand in with their parts. It knows neither orders nor checkpoints.

THE DIGEST, FORMAT 1. It stands in manifests and events: it changes only with another name there.

    mix(z)  = the finaliser of splitmix64 (permutation.py); all numbers modulo 2**64
    G       = 0x9E3779B97F4A7C15
    K[0..1] = 0x243F6A8885A308D3, 0x13198A2E03707344
    h[l](step, id) = mix(mix(K[l] + (step + 1) * G) + (id + 1) * G)
    lane l  = the sum of h[l](step, id) over all samples used; step counts from the stage's start
    digest  = lane 1 * 2**64 + lane 0, written as 32 hexadecimal digits

A sample used twice, left out or used in another step leaves the same digest with a probability of
2**-128.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from tasuki.data.permutation import mix_words
from tasuki.errors import DataError

Ints = NDArray[np.int64]
Words = NDArray[np.uint64]

LANES = 2
_KEYS = (0x243F6A8885A308D3, 0x13198A2E03707344)
_GOLDEN = np.array(0x9E3779B97F4A7C15, dtype=np.uint64)
_ONE = np.array(1, dtype=np.uint64)
_WIDTH = 64
_MASK = 2**_WIDTH - 1
_ROOM = 1 << 16
_PER_STEP = 256
"""What is not folded yet: at most 256 steps, and fewer where they are large; a step as a whole."""


@dataclass(frozen=True, slots=True)
class Used:
    """How many samples, and which in which step."""

    count: int = 0
    digest: int = 0

    def __post_init__(self) -> None:
        if self.count < 0 or not 0 <= self.digest < 1 << _WIDTH * LANES:
            raise DataError(f"impossible record of used samples: {self.count}, {self.digest:x}")

    def __add__(self, other: Used) -> Used:
        lanes = zip(self.lanes, other.lanes, strict=True)
        return Used.of(self.count + other.count, [one + two for one, two in lanes])

    @property
    def lanes(self) -> tuple[int, ...]:
        return tuple(self.digest >> _WIDTH * lane & _MASK for lane in range(LANES))

    @classmethod
    def of(cls, count: int, lanes: Sequence[int]) -> Self:
        """Lanes may be larger than 64 bits: only those count."""
        return cls(count, sum((word & _MASK) << _WIDTH * lane for lane, word in enumerate(lanes)))

    def to_json(self) -> dict[str, Any]:
        return {"count": self.count, "digest": f"{self.digest:0{_WIDTH * LANES // 4}x}"}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """What `to_json` gave; anything else is a DataError."""
        try:
            count, digest = value["count"], value["digest"]
            if type(count) is int and len(digest) == _WIDTH * LANES // 4:
                return cls(count, int(digest, 16))
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"no record of used samples: {str(value)[:80]}") from error
        raise DataError(f"no record of used samples: {str(value)[:80]}")


NONE = Used()


class UsedSamples:
    """Adds up what one rank uses, from a checkpoint on or from nothing."""

    __slots__ = ("_pending", "_room", "_total")

    def __init__(self, start: Used = NONE) -> None:
        self._total = start
        self._pending: list[tuple[int, Sequence[int]]] = []
        self._room = _ROOM

    def add(self, stage_step: int, indices: Sequence[int]) -> None:
        """These samples were used in that step of the stage. Mere keeping: 0.1 µs."""
        if self._room < 0 and self._pending[-1][0] != stage_step:
            self._fold()
        self._pending.append((stage_step, indices))
        self._room -= _PER_STEP + len(indices)

    def take_back(self, stage_step: int) -> None:
        """Of the running step: it is undone, and none of its samples has been used."""
        while self._pending and self._pending[-1][0] == stage_step:
            _, indices = self._pending.pop()
            self._room += _PER_STEP + len(indices)

    def total(self) -> Used:
        """Everything so far, what it began with included."""
        self._fold()
        return self._total

    def _fold(self) -> None:
        self._room = _ROOM
        if not self._pending:
            return
        pending, self._pending = self._pending, []
        counts = [len(indices) for _, indices in pending]
        ids = np.fromiter(
            chain.from_iterable(indices for _, indices in pending), np.int64, sum(counts)
        )
        steps = np.array([step for step, _ in pending], dtype=np.int64)
        self._total += digest_of(steps, counts, ids)


def digest_of(steps: Ints, counts: Sequence[int] | Ints, ids: Ints) -> Used:
    """Of steps one after another: `counts[i]` of the samples were used in step `steps[i]`."""
    sums = [int(words.sum(dtype=np.uint64)) for words in words_of(steps, counts, ids)]
    return Used.of(len(ids), sums)


def words_of(steps: Ints, counts: Sequence[int] | Ints, ids: Ints) -> tuple[Words, ...]:
    """h of each sample, lane by lane; arrays wrap around silently."""
    moved = (ids.astype(np.uint64) + _ONE) * _GOLDEN
    keyed = (steps.astype(np.uint64) + _ONE) * _GOLDEN
    found = []
    for key in _KEYS:
        words = np.repeat(mix_words(keyed + np.array(key, dtype=np.uint64)), counts)
        words += moved
        found.append(mix_words(words))
    return tuple(found)
