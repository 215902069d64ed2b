"""Loader workers that die: heard of where a batch is waited for, and nowhere else.

torch's handler of SIGCHLD raises in the main thread when a worker dies, wherever that stands: in an
optimizer's step, or in the middle of a save. Here it is kept and asked while somebody waits for a
batch; until then a death is only noted.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from multiprocessing import resource_tracker
from typing import Any

from torch.utils.data._utils import signal_handling

from tasuki.signals import deaf


class _Nursery:
    """This process's children, as far as SIGCHLD tells."""

    def __init__(self) -> None:
        self._theirs: Callable[..., Any] | None = None
        """torch's handler (and whose it follows): raises if a worker has failed."""
        self.is_waited_for = False
        self.has_news = False
        self.is_silent = False

    def take_over(self) -> None:
        """Stand in for the handler that torch sets with its first workers. Main thread only."""
        self.is_silent = False
        if threading.current_thread() is not threading.main_thread():
            return
        current = signal.getsignal(signal.SIGCHLD)
        if callable(current) and current != self.on_signal:
            self._theirs = current
            signal.signal(signal.SIGCHLD, self.on_signal)

    def on_signal(self, number: int, frame: Any) -> None:
        self.has_news = True
        if self.is_waited_for:
            self.look(number, frame)

    def look(self, number: int = signal.SIGCHLD, frame: Any = None) -> None:
        if self.has_news and self._theirs is not None and not self.is_silent:
            self.has_news = False
            self._theirs(number, frame)


_nursery = _Nursery()


@contextlib.contextmanager
def starting_workers(*, is_spawned: bool) -> Iterator[None]:
    """A notice goes to the whole process group: workers begin, and stay, deaf to it. One that died
    of it would break the last steps and the save."""
    if is_spawned:
        # Its tracker starts with the first of them, and makes this thread hear again.
        resource_tracker.ensure_running()
    with deaf():
        yield
    _nursery.take_over()


@contextlib.contextmanager
def waiting() -> Iterator[None]:
    """Around each wait for a batch: here the death of a worker is an exception."""
    _nursery.is_waited_for = True
    try:
        _nursery.look()
        yield
    finally:
        _nursery.is_waited_for = False


def kill_workers(batches: Any) -> None:
    """Those of an iterator of a DataLoader: by pid, at once, from any thread. Nobody is told of
    these deaths, not even whoever waits for a batch of the next iterator: torch forgets them."""
    _nursery.is_silent = True
    for worker in getattr(batches, "_workers", ()):
        with contextlib.suppress(ProcessLookupError, TypeError, AttributeError):
            os.kill(worker.pid, signal.SIGKILL)
    if getattr(batches, "_worker_pids_set", False):
        signal_handling._remove_worker_pids(id(batches))
        batches._worker_pids_set = False
