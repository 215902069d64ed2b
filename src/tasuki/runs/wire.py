"""What supervisor and rank tell each other: JSON lines over a socketpair.

Down: `deadline` {remaining_s, grace_s}, `notice` {cause, remaining_s, is_guess}, `publish`. Up:
`hello`, `phase` {phase, limit_s}, `step` {step, total, samples, at, limit_s}, `signalled`,
`publishing`, `saved` {checkpoint, is_start}, `decided` (the next attempt goes another way), `done`
{ending, cause, message, hint, is_peer}. `limit_s`: how long the rank may be silent from then on.
`samples`: of the stage so far, at the time `at` of the rank's monotonic clock. End of file means
that the other side is dead.
"""

from __future__ import annotations

import json
import select
import socket
import threading
import time
from typing import Any

MAX_LINE = 1 << 20


class Wire:
    """One end of the socketpair. Sending never blocks and never raises: what a peer that does not
    read leaves no room for waits, and what would wait for ever is dropped."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.is_closed = False
        self._pending = b""
        self._is_skipping = False
        self._unsent = b""
        self._lock = threading.Lock()

    def fileno(self) -> int:
        return self.sock.fileno()

    def send(self, kind: str, **facts: Any) -> None:
        line = json.dumps({"kind": kind, **facts}).encode() + b"\n"
        with self._lock:
            if len(self._unsent) + len(line) <= MAX_LINE:
                self._unsent += line
            self._push()

    def flush(self, *, within_s: float) -> None:
        """Before leaving: wait a little for a slow peer to take the last word."""
        until = time.monotonic() + within_s
        while self._unsent and not self.is_closed and time.monotonic() < until:
            select.select([], [self.sock], [], 0.05)
            with self._lock:
                self._push()

    def _push(self) -> None:
        try:
            while self._unsent:
                sent = self.sock.send(self._unsent, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
                self._unsent = self._unsent[sent:]
        except BlockingIOError:
            pass
        except OSError:
            self.is_closed = True

    def receive(self) -> list[dict[str, Any]] | None:
        """The messages that have arrived; None at end of file."""
        try:
            data = self.sock.recv(65536)
        except (BlockingIOError, InterruptedError):
            return []
        except OSError:
            data = b""
        if not data:
            self.is_closed = True
            return None
        *lines, self._pending = (self._pending + data).split(b"\n")
        if self._is_skipping and lines:
            self._is_skipping = False
            lines = lines[1:]  # the tail of a line that was too long
        if len(self._pending) > MAX_LINE:
            self._pending, self._is_skipping = b"", True
        return [message for line in lines if (message := _parse(line)) is not None]


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) and isinstance(value.get("kind"), str) else None
