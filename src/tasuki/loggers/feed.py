"""Give rows to sinks, each in a thread of its own, so that one that hangs hangs alone.

A sink that raises, hangs or cannot keep up is told of and left alone for this attempt: the next one
gives it everything again. What it raised is printed, into a log of its own, and nowhere else: the
words of a client may hold keys.
"""

from __future__ import annotations

import sysconfig
import threading
import traceback
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path

import tasuki.errors
from tasuki.clock import Clock
from tasuki.errors import TasukiError, is_users
from tasuki.loggers.sink import Sink, SinkRun
from tasuki.loggers.truth import News

HANGS_AFTER_S = 120.0
"""A call that takes longer does not come back."""
_MOST_WAITING = 100_000
_BEGIN_AFTER_S = 1800.0
"""The same, where there may be much to import or to write."""

_OURS = f"{Path(tasuki.errors.__file__).parent}/"
_PYTHONS = sysconfig.get_path("stdlib")

Warn = Callable[[str], None]


class Feed(threading.Thread):
    """One sink and the rows that wait for it."""

    def __init__(
        self, name: str, make: Callable[[], Sink], run: SinkRun, *, clock: Clock, warn: Warn
    ) -> None:
        super().__init__(name=f"tasuki-sink-{name}", daemon=True)
        self.sink_name = name
        self.is_left_alone = False
        self._make, self._run_facts, self._clock, self._warn = make, run, clock, warn
        self._waiting: deque[News] = deque()
        self._num_rows = 0
        self._is_closing = False
        self._wakes = threading.Condition()
        self._call: tuple[str, float] | None = None
        """Which of its methods runs, and since when."""

    # -- from outside -----------------------------------------------------------------------------

    def give(self, news: News) -> None:
        with self._wakes:
            if self.is_left_alone:
                return
            if news.begins:  # what waits is void, or part of it
                self._waiting.clear()
                self._num_rows = 0
            self._waiting.append(news)
            self._num_rows += 0 if news.begins else len(news.rows)
            if self._num_rows > _MOST_WAITING:
                self._leave_alone(f"{_MOST_WAITING:,} rows wait for it: it cannot keep up")
            self._wakes.notify()

    def look(self) -> None:
        """Does it hang?"""
        call = self._call
        if call is None or self.is_left_alone:
            return
        longest = _BEGIN_AFTER_S if call[0] in ("make", "begin") else HANGS_AFTER_S
        if self._clock.monotonic() - call[1] > longest:
            with self._wakes:
                self._leave_alone(f"`{call[0]}` has not come back for {longest:.0f} s")

    def close(self) -> None:
        """After what waits. Come back with `join`."""
        with self._wakes:
            self._is_closing = True
            self._wakes.notify()

    def _leave_alone(self, why: str) -> None:
        if self.is_left_alone:
            return
        self.is_left_alone = True
        self._waiting.clear()
        self._num_rows = 0
        self._warn(
            f"the sink `{self.sink_name}` is left alone for this attempt: {why}; training goes on, "
            "and its metrics are in the run's folder"
        )

    # -- its thread -------------------------------------------------------------------------------

    def run(self) -> None:
        try:
            self._work()
        except BaseException as error:
            traceback.print_exc()
            with self._wakes:
                self._leave_alone(in_words(error))

    def _work(self) -> None:
        self._call = ("make", self._clock.monotonic())
        sink = self._make()
        self._call = None
        has_begun = False
        while (news := self._next(sink if has_begun else None)) is not None:
            if news.begins:
                self._timed("begin", partial(sink.begin, self._run_facts, news.rows))
                has_begun = True
            else:
                for row in news.rows:
                    self._timed("log", partial(sink.log, row))
        if has_begun and not self.is_left_alone:
            self._timed("close", sink.close)

    def _next(self, sink: Sink | None) -> News | None:
        """None: nothing will come any more."""
        with self._wakes:
            if self._waiting:
                return self._pop()
            is_over = self._is_closing or self.is_left_alone
        if is_over:
            return None
        flush = getattr(sink, "flush", None)
        if flush is not None:
            self._timed("flush", flush)
        with self._wakes:
            while not self._waiting and not self._is_closing and not self.is_left_alone:
                self._wakes.wait()
            return self._pop() if self._waiting else None

    def _pop(self) -> News:
        news = self._waiting.popleft()
        self._num_rows -= 0 if news.begins else len(news.rows)
        return news

    def _timed(self, name: str, call: Callable[[], None]) -> None:
        self._call = (name, self._clock.monotonic())
        call()
        self._call = None


def in_words(error: BaseException) -> str:
    """Its type and place. Not its text, unless it is ours: that of a client may hold a key."""
    frames = traceback.extract_tb(error.__traceback__)
    files = [frame.filename for frame in frames]
    if isinstance(error, TasukiError) and files and files[-1].startswith(_OURS):
        return f"{error.message} ({error.hint})" if error.hint else error.message
    own = [frame for frame in frames if _is_own(frame.filename)]
    place = own[-1] if own else frames[-1] if frames else None
    where = f" at {Path(place.filename).name}:{place.lineno}" if place is not None else ""
    if isinstance(error, ModuleNotFoundError) and error.name:
        return f"no module `{error.name}`{where}"
    return f"{type(error).__name__}{where}"


def _is_own(file: str) -> bool:
    return is_users(file) and not file.startswith((_PYTHONS, "<frozen"))
