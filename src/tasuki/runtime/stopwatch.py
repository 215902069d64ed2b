"""Where this process's time goes, by part of the ledger."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from tasuki.clock import Clock


class Stopwatch:
    """Adds up seconds by part; parts do not nest: an inner part's time is taken from the outer."""

    def __init__(self, clock: Clock, *, lived_s: float = 0.0) -> None:
        self.parts: dict[str, float] = {}
        self._clock = clock
        self._born = clock.monotonic() - lived_s
        self._inner = 0.0

    @property
    def lived_s(self) -> float:
        return self._clock.monotonic() - self._born

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[None]:
        began, outer = self._clock.monotonic(), self._inner
        self._inner = 0.0
        try:
            yield
        finally:
            taken = self._clock.monotonic() - began
            self.add(name, taken - self._inner)
            self._inner = outer + taken

    def add(self, name: str, seconds: float) -> None:
        self.parts[name] = self.parts.get(name, 0.0) + seconds
