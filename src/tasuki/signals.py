"""Signals that announce the end, seen at once and never lost.

Python runs a handler between two instructions of the main thread: behind a C call of five seconds
it comes five seconds late. The interpreter's own handler, in C, writes a byte into the wakeup
descriptor within milliseconds, and any thread may read it. Handlers here only set a flag: it is
what remains where the pipe was full, or where somebody else took the descriptor.

Used by the supervisor's loop, by a rank's watch, and by the loaders, whose workers must not die of
a notice to the whole process group.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator

NOTICES = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP)
STACKS = signal.SIGQUIT
"""Lets a rank write the stacks of its threads into its .err log."""


class SignalPipe:
    """Signals as bytes on a pipe."""

    def __init__(self) -> None:
        self.has_notice = False
        """One of NOTICES came. Stays true: a second one says nothing new."""
        self.first: int | None = None
        """Which of them."""
        self.reader, self._writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._previous: list[tuple[int, object]] = []
        self._mask: set[signal.Signals] = set()

    def install(self, *more: int) -> None:
        """In the main thread. Whoever started us may have held notices back until now."""
        signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        for number in (*NOTICES, *more):
            self._previous.append((number, signal.signal(number, self._on_signal)))
        os.register_at_fork(after_in_child=self._forget)
        self._mask = {
            signal.Signals(number)
            for number in signal.pthread_sigmask(signal.SIG_UNBLOCK, NOTICES)
            if number in NOTICES
        }

    def restore(self) -> None:
        """As before. Notices that were held back are so again: a second one, which comes while the
        last words are written, must not kill."""
        signal.pthread_sigmask(signal.SIG_BLOCK, self._mask)
        signal.set_wakeup_fd(-1)
        for number, handler in self._previous:
            signal.signal(number, handler)  # type: ignore[arg-type]
        os.close(self.reader)
        os.close(self._writer)
        self._writer = -1

    def drain(self) -> None:
        """Read what has come; never blocks."""
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self.reader, 4096):
                for number in data:
                    self._note(number)

    def _on_signal(self, number: int, _: object) -> None:
        self._note(number)

    def _note(self, number: int) -> None:
        if number in NOTICES:
            self.first = self.first or number
            self.has_notice = True

    def _forget(self) -> None:
        """In a child of a fork: what it is sent is not for us."""
        theirs = signal.set_wakeup_fd(-1)
        if theirs not in (-1, self._writer):
            signal.set_wakeup_fd(theirs)


@contextlib.contextmanager
def deaf() -> Iterator[None]:
    """Processes started in here are deaf to notices until they choose to hear; this one is not:
    its other threads take them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, NOTICES)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
