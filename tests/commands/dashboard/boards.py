"""A board as a person starts it, and ways to ask it: raw requests, and what a page may hold."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tests.commands.projects import user_environment


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    text: str

    def json(self) -> Any:
        return json.loads(self.text)


@dataclass(frozen=True)
class RunningBoard:
    """A `tasuki board` process."""

    url: str
    said: str
    process: subprocess.Popen[str]

    @property
    def port(self) -> int:
        return int(re.findall(r":(\d+)/", self.url)[0])

    @property
    def token(self) -> str:
        return self.url.partition("token=")[2]

    def at(self, name: str = "", part: str = "", *, others: tuple[str, ...] = ()) -> str:
        """The address of a page."""
        more = "&".join(f"with={quote(other)}" for other in others)
        place = f"run/{quote(name)}" + (f"/{part}" if part else "") if name else ""
        return f"{self.url}#/{place}" + (f"?{more}" if more else "")

    def get(self, path: str, **headers: str) -> Answer:
        """As a script with the token."""
        return self.ask("GET", path, {"Authorization": f"Bearer {self.token}", **headers})

    def ask(self, method: str, path: str, headers: Mapping[str, str]) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        with contextlib.closing(connection):
            connection.request(method, path, headers=dict(headers))
            got = connection.getresponse()
            text = got.read().decode("utf-8", "replace")
            return Answer(got.status, {k.lower(): v for k, v in got.getheaders()}, text)

    def raw(self, request: bytes) -> bytes:
        """What comes back, up to the end of the headers at least."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=5) as wire:
            wire.sendall(request)
            wire.settimeout(3)
            got = b""
            with contextlib.suppress(TimeoutError, ConnectionError):
                while b"\r\n\r\n" not in got and (piece := wire.recv(65536)):
                    got += piece
            return got


def start_board(
    runs: Path, *words: str, folder: Path, environment: Mapping[str, str] | None = None
) -> RunningBoard:
    process = subprocess.Popen(
        [sys.executable, "-m", "tasuki", "board", "--runs", str(runs), *words],
        cwd=folder,
        env=user_environment(**(environment or {})),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout and process.stderr
    url = process.stdout.readline().strip()
    if not url:
        out, err = process.communicate(timeout=60)
        raise AssertionError(f"no board: {out}{err}")
    said = "".join(process.stderr.readline() for _ in range(4))
    return RunningBoard(url, said, process)


@contextlib.contextmanager
def board_on(runs: Path, *words: str, folder: Path, **environment: str) -> Iterator[RunningBoard]:
    board = start_board(runs, *words, folder=folder, environment=environment)
    try:
        yield board
    finally:
        board.process.send_signal(signal.SIGINT)
        try:
            board.process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            board.process.kill()
