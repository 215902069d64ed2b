"""The end of an attempt, seen from a rank: the supervisor's notice, a signal, or our own clock.

Signal handlers only set a flag. A thread listens to the supervisor and watches the clock; the
training loop looks at one attribute per step. Before the first step there is nothing to save, so
the thread leaves at once; from then on only a step boundary acts.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from tasuki.clock import Clock
from tasuki.errors import EXIT_RESUME_ME
from tasuki.relay.values import Cause, Ending
from tasuki.telemetry.wire import Wire

NOTICE_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP)
_LOOK_EVERY_S = 0.1
_JITTER_S = 0.4
"""Our own reaction time and the scheduler's unevenness."""
_KNOWN_STEPS = 512
_KNOWN_SAVES = 16


class Watch(threading.Thread):
    """Knows when this attempt must end."""

    def __init__(self, wire: Wire | None, clock: Clock) -> None:
        super().__init__(name="tasuki-watch", daemon=True)
        self.notice: Cause = Cause.NONE
        """Looked at by the training loop at each step boundary."""
        self.is_interruptible = True
        """Nothing would be lost by leaving now: start-up, evaluation."""
        self.before_leaving: Callable[[], None] = lambda: None
        self.on_notice: Callable[[], None] = lambda: None
        self.step_s: deque[float] = deque(maxlen=_KNOWN_STEPS)
        self.save_s: deque[float] = deque(maxlen=_KNOWN_SAVES)
        self._wire = wire
        self._clock = clock
        self._deadline: float | None = None
        self._signalled = False
        self._lock = threading.Lock()

    def install_handlers(self) -> None:
        """Flags only. Called from the main thread, before anything slow."""
        for number in NOTICE_SIGNALS:
            signal.signal(number, self._on_signal)

    def _on_signal(self, *_: object) -> None:
        self._signalled = True

    def run(self) -> None:
        while True:
            self._listen()
            self._look()
            if self.notice is not Cause.NONE and self.is_interruptible:
                self._leave()

    def hold_on(self) -> None:
        """From here on, work would be lost by leaving: only a step boundary may."""
        with self._lock:
            self.is_interruptible = False

    def tell(self, kind: str, **facts: Any) -> None:
        if self._wire is not None:
            self._wire.send(kind, **facts)

    def flush(self) -> None:
        if self._wire is not None:
            self._wire.flush(within_s=2.0)

    @property
    def lead_s(self) -> float:
        """How long before the end the last step must be over: one step, one save, and a bit."""
        steps = sorted(self.step_s)
        step = steps[min(len(steps) - 1, int(len(steps) * 0.99))] if steps else 0.0
        return step + 1.5 * max(self.save_s, default=0.0) + _JITTER_S

    def remaining_s(self) -> float | None:
        return None if self._deadline is None else self._deadline - self._clock.monotonic()

    def _listen(self) -> None:
        if self._wire is None or self._wire.is_closed:
            self._clock.sleep(_LOOK_EVERY_S)
            return
        if not select.select([self._wire], [], [], _LOOK_EVERY_S)[0]:
            return
        messages = self._wire.receive()
        if messages is None:
            self._give(Cause.INTERRUPTED)  # a rank without supervisor hands over
            return
        for message in messages:
            self._hear(message)

    def _hear(self, message: dict[str, Any]) -> None:
        remaining = message.get("remaining_s")
        if message["kind"] == "deadline" and remaining is not None:
            self._deadline = self._clock.monotonic() + float(remaining)
        elif message["kind"] == "notice":
            self._give(Cause(message["cause"]))

    def _look(self) -> None:
        if self._signalled and self.notice is Cause.NONE:
            # Why it came is the supervisor's to say; where it got none itself, it is a preemption.
            self._give(Cause.INTERRUPTED if self._wire is None else Cause.PREEMPTED)
        remaining = self.remaining_s()
        if remaining is not None and remaining <= self.lead_s:
            self._give(Cause.LIMIT)

    def _give(self, cause: Cause) -> None:
        if self.notice is Cause.NONE:
            self.notice = cause
            self.on_notice()

    def _leave(self) -> None:
        with self._lock:
            if self.is_interruptible:
                leave(self, ending=Ending.HANDED_OVER, status=EXIT_RESUME_ME)


def leave(
    watch: Watch,
    *,
    ending: Ending,
    status: int,
    message: str = "",
    hint: str = "",
    is_peer: bool = False,
) -> None:
    """Say the last word and go, without interpreter teardown: with torch that takes 2 s."""
    watch.before_leaving()
    watch.tell(
        "done", ending=ending, cause=watch.notice, message=message, hint=hint, is_peer=is_peer
    )
    watch.flush()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)
