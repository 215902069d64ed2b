"""Wait for room on a full disk, where there is nothing else to do meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from tasuki.clock import Clock
from tasuki.errors import DiskFull, RunError

T = TypeVar("T")
WAIT_S = 600.0
_LOOK_EVERY_S = 2.0


def when_there_is_room(
    act: Callable[[], T],
    *,
    say: Callable[[str], None],
    clock: Clock,
    should_stop: Callable[[], bool] = lambda: False,
) -> T:
    """Do it, again and again while the disk is full; after ten minutes a person must look."""
    until = clock.monotonic() + WAIT_S
    has_said = False
    while True:
        try:
            return act()
        except DiskFull as error:
            if should_stop():
                # There may be room for the next attempt: a failure, no reason to hold the run.
                words = f"there was no room until the end of this attempt: {error}"
                raise RunError(words, hint=error.hint) from error
            if clock.monotonic() >= until:
                raise
            if not has_said:
                say(f"WARNING: waiting for room (up to {WAIT_S / 60:.0f} min): {error}")
                has_said = True
        clock.sleep(_LOOK_EVERY_S)
