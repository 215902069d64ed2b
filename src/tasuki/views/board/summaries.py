"""The list of runs, read by one thread for everybody who looks, and only while somebody does.

Each pass asks the source for every run (cheap where nothing changed) and rests many times as long
as it took, so that a thousand runs on a slow disk cost little. A row that changed gets the next
number: whoever says which number he saw last is told what is new.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

from tasuki.errors import TasukiError
from tasuki.views.board.source import Source, Values

_LEAST_REST_S = 1.0
_RESTS = 20
"""Times as long as a pass took: at most a twentieth of a core."""
_MOST_REST_S = 15.0
_LOOKED_AT_S = 20.0
"""A stream asks every second; after this long nobody looks any more."""


@dataclass(frozen=True, slots=True)
class News:
    """What changed since a number."""

    number: int
    rows: list[Values]
    gone: list[str]
    is_whole: bool
    """The first pass is over: what is not here is not there."""


@dataclass(slots=True)
class _Known:
    row: Values
    number: int


@dataclass(slots=True)
class Summaries:
    source: Source
    _rows: dict[str, _Known] = field(default_factory=dict)
    _gone: dict[str, int] = field(default_factory=dict)
    _number: int = 0
    _is_whole: bool = False
    _asked_at: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _wake: threading.Event = field(default_factory=threading.Event)
    _is_over: bool = False

    def start(self) -> None:
        threading.Thread(target=self._work, name="summaries", daemon=True).start()

    def stop(self) -> None:
        self._is_over = True
        self._wake.set()

    def since(self, number: int) -> News:
        """Everything, for a number below 0."""
        if time.monotonic() - self._asked_at > _LOOKED_AT_S:
            self._wake.set()
        self._asked_at = time.monotonic()
        with self._lock:
            rows = [known.row for known in self._rows.values() if known.number > number]
            gone = [name for name, at in self._gone.items() if at > number]
            return News(self._number, rows, gone, self._is_whole)

    def holds(self, name: str) -> bool:
        """Is this a run? Only what the folder itself lists is one."""
        with self._lock:
            if name in self._rows:
                return True
        return name in self.source.names()

    def _work(self) -> None:
        while not self._is_over:
            began = time.monotonic()
            self._pass()
            took = time.monotonic() - began
            self._wake.clear()
            if time.monotonic() - self._asked_at > _LOOKED_AT_S:
                self._wake.wait()  # nobody looks
            else:
                self._wake.wait(min(_MOST_REST_S, max(_LEAST_REST_S, _RESTS * took)))

    def _pass(self) -> None:
        names = self._names()
        for name in names:
            if self._is_over:
                return
            self._take(name, _summary(self.source, name))
        with self._lock:
            for name in set(self._rows) - set(names):
                del self._rows[name]
                self._number += 1
                self._gone[name] = self._number
            self._is_whole = True

    def _names(self) -> list[str]:
        try:
            return self.source.names()
        except (TasukiError, OSError):
            return list(self._rows)  # a folder that is away for a moment takes no run with it

    def _take(self, name: str, row: Values) -> None:
        with self._lock:
            known = self._rows.get(name)
            if known is None or known.row != row:
                self._number += 1
                self._rows[name] = _Known(row, self._number)
                self._gone.pop(name, None)


def _summary(source: Source, name: str) -> Values:
    """A run that cannot be read is a line that says so; also where its files hold what nobody
    foresaw, for one run must not hide the others."""
    try:
        return source.summary(name)
    except (TasukiError, OSError) as error:
        words = str(error)
    except Exception as error:
        words = f"its files hold what tasuki does not understand ({type(error).__name__}: {error})"
    return {"experiment": name, "state": None, "reason": f"cannot be read: {words[:500]}"}
