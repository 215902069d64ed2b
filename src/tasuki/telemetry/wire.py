"""What supervisor and rank tell each other: JSON lines over a socketpair.

Down: `deadline` {remaining_s}, `notice` {cause, remaining_s}. Up: `hello`, `phase` {phase},
`step` {step, total}, `saved` {checkpoint, is_start}, `done` {ending, cause, message, hint,
is_peer}.
End of file means that the other side is dead.
"""

from __future__ import annotations

import json
import socket
from typing import Any

MAX_LINE = 1 << 20


class Wire:
    """One end of the socketpair. Sending never blocks for long and never raises on a dead peer."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.is_closed = False
        self._pending = b""

    def fileno(self) -> int:
        return self.sock.fileno()

    def send(self, kind: str, **facts: Any) -> None:
        try:
            self.sock.sendall(json.dumps({"kind": kind, **facts}).encode() + b"\n")
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
        if len(self._pending) > MAX_LINE:
            self._pending = b""
        return [message for line in lines if (message := _parse(line)) is not None]


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) and isinstance(value.get("kind"), str) else None
