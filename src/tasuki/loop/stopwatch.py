"""Where this process's time goes, by part of the ledger."""

from __future__ import annotations

import contextlib
import os
import time
from collections import defaultdict
from collections.abc import Iterator

from tasuki.clock import Clock


def process_age_s() -> float:
    """How long this process has lived: interpreter and imports included."""
    with open("/proc/self/stat") as file:  # noqa: PTH123 (read before pathlib is worth importing)
        ticks = int(file.read().rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


class Stopwatch:
    """Adds up seconds by part; parts do not nest: an inner part's time is taken from the outer."""

    def __init__(self, clock: Clock, *, lived_s: float = 0.0) -> None:
        self.parts: defaultdict[str, float] = defaultdict(float)
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
        self.parts[name] += seconds

    def rounded(self) -> dict[str, float]:
        """For an event."""
        return {name: round(seconds, 4) for name, seconds in self.parts.items()}
