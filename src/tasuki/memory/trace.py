"""What was seen in one step: storages that came and went, in order. Pure; made by tracker.py."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import Literal, NamedTuple, get_args

Kind = Literal["weights", "gradients", "optimizer", "activations", "messages", "batch", "other"]
KINDS: tuple[Kind, ...] = get_args(Kind)


class Event(NamedTuple):
    """A storage comes (its number) or goes (minus its number)."""

    number: int
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """One step at one point."""

    batch: int
    size: int
    """0: the data have no size."""
    begin: int
    """So many events at the start are what lies there before the step."""
    events: tuple[Event, ...]
    """Storages are numbered from 1 in the order in which they come."""
    kinds: tuple[Kind, ...]
    """Of storage 1, 2, …"""
    flops: int = 0
    moved: int = 0
    """Bytes that operations read and write."""
    ops: int = 0

    @property
    def peak(self) -> int:
        return peak_of(self.events)


def peak_of(events: tuple[Event, ...] | list[Event]) -> int:
    """The most bytes at once."""
    signed = (e.num_bytes if e.number > 0 else -e.num_bytes for e in events)
    return max(accumulate(signed), default=0)


def sort_frees(events: list[Event]) -> tuple[Event, ...]:
    """Which of several storages goes first, with none coming in between, is chance and changes no
    peak: one order for all, so that two traces can be laid side by side."""
    done: list[Event] = []
    frees: list[Event] = []
    for event in events:
        if event.number < 0:
            frees.append(event)
        else:
            done += sorted(frees, reverse=True)
            frees.clear()
            done.append(event)
    return (*done, *sorted(frees, reverse=True))
