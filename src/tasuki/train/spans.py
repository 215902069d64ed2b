"""Named spans of time that nest; what is inside an inner one is not counted in the outer.

On the CPU by the clock. On a GPU by events in its stream: work is only queued there, so a clock
would see how long the queueing takes. Seen from the stream all parts lie one behind the other: a
wait for data that is hidden behind work which is still queued takes no time, as it should.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from tasuki.clock import Clock


class Timeline(Protocol):
    """Marks in time, and how far apart they are."""

    def mark(self) -> Any: ...

    def settle(self) -> None:
        """Wait until all marks are in the past."""

    def seconds(self, begin: Any, end: Any) -> float: ...


class HostTimeline:
    def __init__(self, clock: Clock) -> None:
        self.mark = clock.monotonic

    def settle(self) -> None:
        """They are."""

    def seconds(self, begin: float, end: float) -> float:
        return end - begin


class CudaTimeline:
    """Not seen on a GPU yet."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def mark(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event

    def settle(self) -> None:
        torch.cuda.synchronize(self._device)

    def seconds(self, begin: torch.cuda.Event, end: torch.cuda.Event) -> float:
        return float(begin.elapsed_time(end)) / 1000.0


def timeline_of(device: torch.device, clock: Clock) -> Timeline:
    return CudaTimeline(device) if device.type == "cuda" else HostTimeline(clock)


@dataclass(slots=True)
class _Span:
    name: str
    outer: int | None
    """Its place in the list."""
    begin: Any
    end: Any = None


class Spans:
    """The spans of one window, and what they add up to."""

    def __init__(self, timeline: Timeline, *, is_named: bool = False) -> None:
        """`is_named`: torch's profiler shows them too."""
        self._timeline = timeline
        self._is_named = is_named
        self._spans: list[_Span] = []
        self._open: list[int] = []
        self._begin = self._end = timeline.mark()
        self._num_counted = 0

    @contextlib.contextmanager
    def span(self, name: str) -> Iterator[None]:
        named = torch.profiler.record_function(name) if self._is_named else contextlib.nullcontext()
        self._spans.append(
            _Span(name, self._open[-1] if self._open else None, self._timeline.mark())
        )
        place = len(self._spans) - 1
        self._open.append(place)
        try:
            with named:
                yield
        finally:
            self._open.pop()
            self._spans[place].end = self._timeline.mark()

    def end_step(self) -> None:
        """The window goes up to here, or to a later step; no span is open."""
        assert not self._open
        self._end, self._num_counted = self._timeline.mark(), len(self._spans)

    def add_up(self) -> tuple[dict[str, float], float]:
        """(seconds by name, without what inner spans took; seconds of the whole window). What no
        span covers is in no part."""
        self._timeline.settle()
        parts: dict[str, float] = {}
        for span in self._spans[: self._num_counted]:
            taken = self._timeline.seconds(span.begin, span.end)
            parts[span.name] = parts.get(span.name, 0.0) + taken
            if span.outer is not None:
                parts[self._spans[span.outer].name] -= taken
        return parts, self._timeline.seconds(self._begin, self._end)
