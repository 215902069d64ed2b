"""What can be wrong with a sample, and where it was found."""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

Findings = NDArray[np.int64]
"""Rows of (sample, kind, column): a number each, so that a file of bad samples fits in memory."""

NO_COLUMN = -1


class Kind(IntEnum):
    """Numbers are stored in journals: never give one another meaning."""

    DUPLICATE = 1
    """The same content as an earlier sample."""
    NAN = 2
    """NaN or infinity."""
    UNREADABLE = 3
    OFFSETS = 4
    """Begins or ends at an offset that cannot be right."""
    SIZE = 5
    """`n` below 1."""
    EMPTY = 6
    """No rows in a flat data set, or in one of a group."""
    GROUP = 7
    """A group unlike the others."""

    @property
    def word(self) -> str:
        """In `--json`, and on the command line."""
        return self.name.lower()


UNUSABLE = (Kind.UNREADABLE, Kind.OFFSETS, Kind.SIZE, Kind.GROUP)
"""Training stumbles over these, and no file can be made of them."""


def no_findings() -> Findings:
    return np.empty((0, 3), dtype=np.int64)


def found_at(samples: NDArray[np.integer], kind: Kind, column: int = NO_COLUMN) -> Findings:
    """These samples, all with one finding."""
    rows = np.empty((len(samples), 3), dtype=np.int64)
    rows[:, 0], rows[:, 1], rows[:, 2] = samples, kind, column
    return rows
