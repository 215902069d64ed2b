"""Functions of tests, each done in a fork of a process that has torch imported already.

For work that forks in its turn: the process has one thread and no state of other tests, so nobody
inherits a lock. Run as `python -m tests.harness.errands MODULE…`, it imports the modules once.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).resolve().parents[2]


class Errands:
    """The client side."""

    def __init__(self, server: subprocess.Popen[str]) -> None:
        self._server = server
        self._number = 0

    def do(self, what: str, **arguments: Any) -> Any:
        """Call `module:function` there; what it returns, as JSON has it."""
        orders, answers = self._server.stdin, self._server.stdout
        assert orders is not None and answers is not None
        self._number += 1
        order = {"number": self._number, "what": what, "arguments": arguments}
        orders.write(json.dumps(order) + "\n")
        orders.flush()
        answer = {"number": 0}
        while answer["number"] != self._number:  # one that timed out may answer yet
            line = answers.readline()
            assert line, "the process is gone"
            answer = json.loads(line)
        if "error" in answer:
            raise AssertionError(answer["error"])
        return answer["value"]


@contextmanager
def errands(*modules: str) -> Iterator[Errands]:
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.harness.errands", *modules],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stdout is not None and server.stdout.readline() == "ready\n"
        yield Errands(server)
    finally:
        server.kill()
        server.wait()


def serve(modules: list[str]) -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what functions print is talk
    for module in modules:
        importlib.import_module(module)
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        pid = os.fork()
        if pid == 0:
            _do(order, answers)
        _, status = os.waitpid(pid, 0)
        if status:
            error = f"the process ended with {os.waitstatus_to_exitcode(status)}"
            print(json.dumps({"number": order["number"], "error": error}), file=answers)


def _do(order: dict[str, Any], answers: IO[str]) -> None:
    """In the child; does not return."""
    try:
        module, _, name = order["what"].partition(":")
        value = getattr(importlib.import_module(module), name)(**order["arguments"])
        text = json.dumps({"number": order["number"], "value": value})
    except BaseException:
        text = json.dumps({"number": order["number"], "error": traceback.format_exc()})
    try:
        sys.stdout.flush()
        print(text, file=answers, flush=True)
    finally:
        os._exit(0)


if __name__ == "__main__":
    serve(sys.argv[1:])
