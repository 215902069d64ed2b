"""Who looks at steps without changing any number: profiles, the measurement of memory.

The loop tells them of each step's beginning and end. In an ordinary run the list is empty after an
attempt's second step, and costs nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from tasuki.data.loader import MicroBatch


class Onlooker(Protocol):
    """Looks at steps."""

    def begin_step(self, batches: Iterator[MicroBatch]) -> Iterator[MicroBatch]:
        """The step's micro-batches come through here."""
        ...

    def undo_step(self) -> None:
        """It ran out of memory, and begins anew."""
        ...

    def end_step(self) -> bool:
        """False: nothing more is to be seen."""
        ...
