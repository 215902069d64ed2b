"""The end of an attempt, seen from a loop of one's own: signals, a job's files, the scheduler.

A supervisor that runs a command has no wire to it: it writes the deadline and the notice into files
(docs/commands.md). Without a supervisor the loop asks Slurm itself how long it has, if it is a job
of it. Everything else is loop/watch.py.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from typing import Any

from tasuki.clock import Clock
from tasuki.integrations.place import Place
from tasuki.loop.watch import Watch
from tasuki.runs.runs import CommandFolder
from tasuki.runs.values import Cause
from tasuki.signals import NOTICES, SignalPipe
from tasuki.slurm.allocation import Allocation

_LOOK_AT_FILES_S = 1.0


class LoopWatch(Watch):
    """Of a process that was not started by `python -m tasuki.train`."""

    def __init__(self, clock: Clock, place: Place, *, is_kernel: bool) -> None:
        super().__init__(None, clock)
        self._files: CommandFolder | None = place.job.files if place.job is not None else None
        self.allocation: Allocation | None = None
        """Asked for the time left; None: nobody knows it."""
        self.is_interruptible = not is_kernel
        if place.slurm_job is not None or place.job is not None:
            self.signalled_as = Cause.PREEMPTED
        self._look_at = self._ask_at = -1.0
        self._deadline_text = ""
        self._is_over = threading.Event()
        self._interrupts = 0

    def install_handlers(self) -> None:
        """In the main thread. What was ignored stays so: `nohup`, a shell's background job."""
        ignored = [number for number in NOTICES if signal.getsignal(number) is signal.SIG_IGN]
        super().install_handlers()
        if signal.SIGINT not in ignored:
            signal.signal(signal.SIGINT, self._on_interrupt)
        for number in ignored:
            signal.signal(number, signal.SIG_IGN)

    def _on_interrupt(self, number: int, frame: Any) -> None:
        """Ctrl-C hands over; who presses it again does not want to wait for that."""
        assert self._signals is not None
        self._signals._on_signal(number, frame)
        self._interrupts += 1
        if self._interrupts > 1:
            raise KeyboardInterrupt

    def run(self) -> None:
        while not self._is_over.is_set():
            self.turn()

    def end(self) -> None:
        """The loop is over and the process lives on, as kernels do: signals are as before."""
        self._is_over.set()
        if self.is_alive():
            self.join()
        pipe: SignalPipe | None = self._signals
        if pipe is not None and threading.current_thread() is threading.main_thread():
            self._signals = None
            pipe.restore()

    def _look(self) -> None:
        now = self._clock.monotonic()
        is_signalled = self._signals is not None and self._signals.has_notice
        if self._files is not None and (now >= self._look_at or is_signalled):
            self._look_at = now + _LOOK_AT_FILES_S
            self._read_files(self._files)
        if self.allocation is not None and now >= self._ask_at:
            remaining = self.allocation.remaining_s()
            self._ask_at = self._clock.monotonic() + self.allocation.patience_s(remaining)
            if remaining is not None:
                self._deadline = self._clock.monotonic() + remaining
        super()._look()

    def _hear_signal(self) -> None:
        is_new = self._signals is not None and self._signals.has_notice
        if is_new and self.notice is Cause.NONE and self._files is not None:
            self._read_files(self._files)  # the supervisor wrote down why it sends the signal
        super()._hear_signal()

    def _read_files(self, files: CommandFolder) -> None:
        with contextlib.suppress(OSError, ValueError):
            text = files.deadline.read_text().strip()
            if text != self._deadline_text:  # once: somebody may set the wall clock
                left = None if text == "never" else float(text) - self._clock.wall()
                self._deadline = None if left is None else self._clock.monotonic() + left
                self._deadline_text = text
        if self.notice is Cause.NONE or self._is_guessed:
            with contextlib.suppress(OSError, ValueError):
                cause = Cause(files.notice.read_text().strip())
                self._hear_notice(cause, self._deadline, is_guess=False)
