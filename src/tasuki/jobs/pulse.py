"""Is a rank still alive? Decided from how long each has been silent. Pure, but for `state_of`.

Silence is counted in the supervisor's own turns, not read off a clock: what passes while the
supervisor itself is stopped (a suspended job, a laptop asleep), or while a clock jumps, is nobody's
silence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_LONGEST_TURN_S = 2.0
"""A turn of the supervisor's loop takes a quarter of a second; what goes beyond this is a stop."""
_STATES = {
    "T": "it is stopped by a signal",
    "t": "it is stopped by a debugger",
    "D": "it waits for a disk or a file system",
    "Z": "it is dead",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pulse:
    """What is known of one rank that runs."""

    rank: int
    silent_s: float
    limit_s: float | None
    """None: it may be silent as long as it likes."""
    doing: str = "start"
    step: int | None = None
    state: str = "?"
    """The kernel's letter for the process."""

    def describe(self) -> str:
        """For the run's end and its events."""
        where = f" at step {self.step}" if self.step is not None else ""
        doing = f" in `{self.doing}`" if self.doing != "train" else ""
        why = f" ({_STATES[self.state]})" if self.state in _STATES else ""
        return (
            f"rank {self.rank} said nothing for {self.silent_s:.0f} s{where}{doing}{why}; "
            f"the limit was {self.limit_s or 0.0:.0f} s"
        )


def awake_s(before: float, now: float) -> float:
    """How much of the time since the last turn counts."""
    return min(max(0.0, now - before), _LONGEST_TURN_S)


def is_hung(pulses: Sequence[Pulse]) -> bool:
    """Has one been silent for too long? While one may take its time (it validates), the others wait
    for it, and none can be."""
    limits = [pulse.limit_s for pulse in pulses]
    if None in limits:
        return False
    return any(pulse.silent_s > (pulse.limit_s or 0.0) for pulse in pulses)


def find_culprit(pulses: Sequence[Pulse]) -> Pulse:
    """When one hangs, all wait for it and fall silent: a stopped one is it, else who is silent for
    the longest time."""
    return min(pulses, key=lambda pulse: (pulse.state not in _STATES, -pulse.silent_s))


def state_of(pid: int) -> str:
    """The kernel's letter for a process; `?` where it cannot be told."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return "?"
    return text.rpartition(")")[2].split()[0]  # the name before it may hold anything
