"""Connections without a request: anybody on this machine can open them, so they count for little.

uvicorn's own limit counts every connection, and answers 503 to the owner when others hold the line;
it waits without end for a first request. Here who does not ask is sent away: after a while, or at
once when many wait, the oldest first.
"""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

_ASK_WITHIN_S = 5.0
_MOST_SILENT = 100


class Connection(H11Protocol):
    _opened_at = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._opened_at = self.loop.time()
        self.loop.call_later(_ASK_WITHIN_S, self._leave_if_silent)
        silent = [c for c in self.connections if isinstance(c, Connection) and c._is_silent]
        if len(silent) > _MOST_SILENT:
            min(silent, key=lambda one: one._opened_at)._leave_if_silent()

    @property
    def _is_silent(self) -> bool:
        """Half a request is none."""
        asked: object = self.cycle  # its type leaves out the None with which it begins
        return asked is None and not self.transport.is_closing()

    def _leave_if_silent(self) -> None:
        if self._is_silent:
            self.transport.abort()
