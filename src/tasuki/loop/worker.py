"""One rank at work on a stage, whoever wrote the loop: what it writes to, and how it speaks.

`train` adds to it what a recipe needs; the integrations use it as it is.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field
from typing import Any

import torch

from tasuki.clock import Clock
from tasuki.loop.ranks import Ranks
from tasuki.loop.stopwatch import Stopwatch
from tasuki.loop.watch import Watch
from tasuki.runs.events import EventLog
from tasuki.runs.runs import RunFolder
from tasuki.spec.resolved import ResolvedStage

_WARNING = "WARNING: "
_STDERR = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """One stage of one run, on one rank, in one attempt."""

    run: RunFolder
    claim: int
    job_name: str
    """Empty: nobody's job, the process was started by hand."""
    stage: ResolvedStage
    stage_number: int
    """1-based."""
    device: torch.device
    threads: int
    ranks: Ranks
    watch: Watch
    stopwatch: Stopwatch
    events: EventLog
    clock: Clock
    grace_s: float | None = None
    """How long a notice lasts."""
    voices: list[int] = field(default_factory=lambda: [1])
    """Descriptors to which its lines go: the attempt's log."""

    @property
    def is_first(self) -> bool:
        return self.ranks.rank == 0

    def say(self, text: str) -> None:
        """A line for people, in the attempt's log; from rank 0 alone. A warning is an event too,
        which `tasuki run` shows."""
        if self.is_first:
            if text.startswith(_WARNING):
                self.events.add("warning", text=text.removeprefix(_WARNING))
            for voice in tuple(self.voices):
                with contextlib.suppress(OSError):  # a full disk under the log must not end the run
                    os.write(voice, f"{text}\n".encode())

    def close_logs(self) -> None:
        """Of its own: a process that lives on, as a kernel does, may open many runs."""
        for voice in [voice for voice in self.voices if voice > _STDERR]:
            self.voices.remove(voice)
            os.close(voice)

    def event(self, kind: str, **facts: Any) -> None:
        if self.is_first:
            self.events.add(kind, **facts)

    def doing(self, what: str) -> None:
        """What the start is at; whoever watches sees it. Not for what happens in every step."""
        self.event("doing", what=what)
