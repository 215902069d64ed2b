"""What tests stand on, ours and the users'. Nothing else in tasuki imports it, but a worker whose
environment asks for a memory cap.

`FakeClock` takes the place of `tasuki.clock.SystemClock` wherever a clock is an argument, so that
hours pass in no time and nothing sleeps. `memory_cap` makes torch run out of memory, really, on
any machine.
"""

from __future__ import annotations

from typing import Any

from tasuki.testing.clock import FakeClock

__all__ = ["FakeClock", "memory_cap"]


def __getattr__(name: str) -> Any:
    """torch is imported by who wants it."""
    if name != "memory_cap":
        raise AttributeError(name)
    from tasuki.testing.memory import memory_cap

    return memory_cap
