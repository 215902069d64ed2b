"""All ranks stop, or save, at the same step; with no collective while nothing is the matter.

One round: somebody wants something and writes `want/<round>` into the process group's key-value
store. A thread on each rank sees it, freezes its training loop at the next step boundary and
acknowledges with the number of steps its loop has started. Rank 0 publishes the largest as
`at/<round>`. Every loop runs on to exactly that step; a loop stuck in a collective is waited for
by nobody, because its thread answered for it.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from datetime import timedelta
from enum import StrEnum
from typing import Protocol

from torch.distributed import DistStoreError, Store

from tasuki.loop.watch import Watch
from tasuki.runs.values import Cause

_WAIT = timedelta(seconds=1)
_ANSWER = timedelta(seconds=60)


class Decision(StrEnum):
    GO = "go"
    SAVE = "save"
    STOP = "stop"


class Agreement(Protocol):
    """Asked before each step."""

    def begin_step(self, steps_done: int) -> Decision:
        """GO: do the next step. SAVE or STOP: do that at this boundary (and ask again)."""
        ...

    def want_save(self) -> None:
        """Ask for a save at the next boundary all ranks can share."""
        ...

    def close(self) -> None:
        """Nobody asks any more."""
        ...


class SoloAgreement:
    """One rank agrees with itself."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._wants_save = False

    def begin_step(self, steps_done: int) -> Decision:  # noqa: ARG002 (the port has it)
        if self._watch.has_notice:
            return Decision.STOP
        if self._wants_save:
            self._wants_save = False
            return Decision.SAVE
        return Decision.GO

    def want_save(self) -> None:
        self._wants_save = True

    def close(self) -> None:
        pass


class StoreAgreement:
    """Several ranks agree through the key-value store."""

    def __init__(
        self,
        connect: Callable[[], Store],
        *,
        name: str,
        rank: int,
        world: int,
        watch: Watch,
        steps_done: int,
        looks_every_s: float | None = None,
    ) -> None:
        """`looks_every_s`: look so often instead of waiting. For processes that end as Python does,
        which they would not survive with a thread that waits in C++, and whose output is read by
        people: torch has a word about every wait."""
        self._looks_every_s = looks_every_s
        self._store = connect()
        # A blocking wait keeps a store's connection to itself, so the thread has its own.
        self._listener = connect()
        self._name = name
        self._rank = rank
        self._world = world
        self._watch = watch
        self._started = steps_done
        self._is_frozen = False
        self._is_closed = threading.Event()
        self._round = 0
        self._at = 0
        self._purpose = Decision.GO
        self._known = threading.Event()
        self._handled = threading.Event()
        watch.on_notice = self._want_stop
        self._thread = threading.Thread(target=self._listen, name="tasuki-agreement", daemon=True)
        self._thread.start()

    # -- the training loop ------------------------------------------------------------------

    def begin_step(self, steps_done: int) -> Decision:
        # First say that the step starts, then look: the thread freezes first, then reads. So a
        # step is either counted by the thread or sees that it is frozen.
        self._started = steps_done + 1
        if not self._is_frozen:
            return Decision.GO
        self._known.wait()
        if steps_done < self._at:
            return Decision.GO
        self._started = steps_done
        purpose = self._purpose
        self._known.clear()
        self._round += 1
        self._is_frozen = False
        self._handled.set()
        return purpose

    def want_save(self) -> None:
        self._want(Decision.SAVE)

    def close(self) -> None:
        self._is_closed.set()
        if self._looks_every_s is not None:
            self._thread.join(_WAIT.total_seconds())

    def _want_stop(self) -> None:
        self._want(Decision.STOP)

    def _want(self, purpose: Decision) -> None:
        with contextlib.suppress(RuntimeError):  # a store whose host is gone: the ranks fall anyway
            self._store.compare_set(self._key("want"), "", str(purpose))

    # -- the thread -------------------------------------------------------------------------

    def _listen(self) -> None:
        while self._take_round():
            pass

    def _take_round(self) -> bool:
        """True to go on with the next round."""
        if self._watch.notice is not Cause.NONE:
            self._want(Decision.STOP)
        try:
            if not self._is_wanted():
                return not self._is_closed.is_set()
        except RuntimeError:
            return False
        try:
            self._answer()
        except RuntimeError:
            # Rank 0 is gone, or somebody never answered: stop here rather than wait for ever.
            self._at, self._purpose = 0, Decision.STOP
            self._known.set()
            return False
        self._handled.wait()
        self._handled.clear()
        return self._purpose is not Decision.STOP

    def _is_wanted(self) -> bool:
        """Now, or within a moment."""
        key = self._key("want")
        if self._looks_every_s is not None:
            return bool(self._listener.check([key])) or (
                not self._is_closed.wait(self._looks_every_s) and bool(self._listener.check([key]))
            )
        try:
            self._listener.wait([key], _WAIT)
        except DistStoreError:
            return False
        return True

    def _answer(self) -> None:
        self._is_frozen = True
        self._listener.set(self._key(f"ack/{self._rank}"), str(self._started))
        if self._rank == 0:
            acks = [self._key(f"ack/{rank}") for rank in range(self._world)]
            self._listener.wait(acks, _ANSWER)
            at = max(int(self._listener.get(ack)) for ack in acks)
            purpose = self._listener.get(self._key("want")).decode()
            self._listener.set(self._key("at"), f"{at} {purpose}")
        self._listener.wait([self._key("at")], _ANSWER)
        self._listener.set(self._key(f"seen/{self._rank}"), "1")
        if self._rank == 0:
            # Rank 0 hosts the store: it must not leave before all have read where to stop.
            seen = [self._key(f"seen/{rank}") for rank in range(self._world)]
            self._listener.wait(seen, _ANSWER)
        at_text, purpose_text = self._listener.get(self._key("at")).decode().split()
        self._at, self._purpose = int(at_text), Decision(purpose_text)
        self._known.set()

    def _key(self, what: str) -> str:
        return f"tasuki/{self._name}/{self._round}/{what}"
