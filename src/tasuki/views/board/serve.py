"""Listens on this machine alone, until Ctrl-C."""

from __future__ import annotations

import errno
import getpass
import secrets
import socket
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from tasuki.errors import UsageError
from tasuki.views.board.source import Source

if TYPE_CHECKING:
    import uvicorn
    from starlette.types import ASGIApp

HOST = "127.0.0.1"
FIRST_PORT = 8765
_TRIES = 40
_END_WITHIN_S = 2


@dataclass(frozen=True, slots=True)
class Address:
    """Where the board is, in words for a person."""

    port: int
    token: str

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}/?token={self.token}"

    @property
    def tunnel(self) -> str:
        """For somebody whose browser is elsewhere."""
        return f"ssh -N -L {self.port}:{HOST}:{self.port} {_user()}@{_host()}"


def _host() -> str:
    """By the name under which others may know it."""
    whole = socket.getfqdn()
    return socket.gethostname() if whole.startswith("localhost") else whole


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user without a name, as in some containers
        return "USER"


def serve(
    source: Source, *, title: str, port: int | None, on_ready: Callable[[Address], None]
) -> None:
    """Returns after Ctrl-C. `port` None: the first free one."""
    _need_packages()
    from tasuki.views.board.app import build_app

    listener = open_listener(port)
    address = Address(listener.getsockname()[1], secrets.token_urlsafe(32))
    app = build_app(
        source,
        title=title,
        token=address.token,
        cookie=f"tasuki-board-{address.port}",
        is_over=lambda: server.should_exit,
    )
    server = make_server(app)
    on_ready(address)
    with listener:
        try:
            server.run(sockets=[listener])
        except KeyboardInterrupt:
            return


def make_server(app: ASGIApp) -> uvicorn.Server:
    """Work is bounded behind the guard (app.py, stream.py): who has no token uses up none of it."""
    import uvicorn

    from tasuki.views.board.connections import Connection

    config = uvicorn.Config(
        app,
        http=Connection,
        access_log=False,  # the first request has the token in its address
        log_level="error",
        server_header=False,
        timeout_graceful_shutdown=_END_WITHIN_S,
        ws="none",
    )
    return uvicorn.Server(config)


def open_listener(port: int | None) -> socket.socket:
    """Bound to loopback. A port that was asked for is that one or none."""
    wanted = range(FIRST_PORT, FIRST_PORT + _TRIES) if port is None else [port]
    for number in wanted:
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((HOST, number))
            listener.listen(128)
            return listener
        except OSError as error:
            listener.close()
            if port is not None:
                raise UsageError(_why_not(port, error), hint=_OTHER) from None
    raise UsageError(f"no port from {FIRST_PORT} on is free on this machine", hint=_OTHER)


_OTHER = "name another with `--port`, or leave it out: the first free one is taken"


def _why_not(port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} is taken on this machine: perhaps another board is open"
    if error.errno == errno.EACCES:
        return f"port {port} is not for users: those below 1024 are the system's"
    return f"port {port} cannot be used: {error.strerror}"


def _need_packages() -> None:
    try:
        import_module("starlette")
        import_module("uvicorn")
    except ImportError as error:
        raise UsageError(
            f"the board needs packages that are not here ({error.name})",
            hint='pip install "tasuki[board]"',
        ) from None
