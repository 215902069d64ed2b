"""A board of made-up runs, served in this process: as many, and as talkative, as a test needs."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from tasuki.views.board.app import build_app
from tasuki.views.board.serve import make_server, open_listener
from tests.commands.projects import until

TOKEN = "the-key"


class FakeSource:
    """A source of runs that are made up: as many, and as talkative, as a test needs."""

    def __init__(self, num: int = 1, *, padding: int = 0) -> None:
        self.rows = {
            f"run-{n:04d}": {"experiment": f"run-{n:04d}", "state": "running"} for n in range(num)
        }
        self.padding = padding
        self.asked = 0
        self.marks: list[dict[str, Any]] = []
        self.voided = 0

    def names(self) -> list[str]:
        return list(self.rows)

    def summary(self, name: str) -> dict[str, Any]:
        self.asked += 1
        return {
            **self.rows[name],
            **({"x": "y" * self.padding, "n": self.asked} if self.padding else {}),
        }

    def detail(self, name: str) -> dict[str, Any]:
        return {"experiment": name, "spec": None}

    def curves(
        self, name: str, *, points: int, first: Any = None, last: Any = None, beyond: Any = None
    ) -> dict[str, Any]:
        return {"series": [], "machine": [], "marks": self.marks, "voided": self.voided}

    def events(self, name: str, *, most: int) -> dict[str, Any]:
        return {"total": 0, "events": []}

    def log(self, name: str, *, file: Any, start: Any, end: Any) -> dict[str, Any]:
        return {"files": [], "file": None, "start": 0, "end": 0, "size": 0, "text": ""}


@contextlib.contextmanager
def served(source: FakeSource, *, patience_s: float = 10.0) -> Iterator[int]:
    app = build_app(source, title="t", token=TOKEN, patience_s=patience_s)
    listener = open_listener(None)
    server = make_server(app)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    until(lambda: server.started)
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(timeout=60)
        listener.close()
