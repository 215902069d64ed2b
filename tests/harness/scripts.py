"""A process with frameworks imported that forks scripts: each start of one costs no import.

Everything else is the real thing: a process of its own, real signals, real files. Run as
`python -m tests.harness.scripts MODULE …`; orders come as lines of JSON on stdin.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def serve(modules: list[str]) -> None:
    import torch._dynamo  # torch's optimizers import it when the first one is made
    import torch._inductor.config  # noqa: F401

    for module in modules:
        import_module(module)
    gc.collect()
    gc.freeze()
    print("ready", flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        pid = os.fork()
        if pid == 0:
            _become(order)
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def _become(order: dict[str, object]) -> None:
    """The script, as `python script.py arguments` would run it."""
    argv = [str(word) for word in order["argv"]]  # type: ignore[attr-defined]
    status = 1
    try:
        os.setsid()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        log = os.open(str(order["log"]), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        for fd in (1, 2):
            os.dup2(log, fd)
        os.environ.update(order["environment"])  # type: ignore[call-overload]
        os.chdir(str(order["cwd"]))
        sys.argv, sys.orig_argv = argv, [sys.executable, *argv]
        sys.path[0] = str(Path(argv[0]).parent)
        try:
            runpy.run_path(argv[0], run_name="__main__")
            status = 0
        except SystemExit as error:
            status = error.code if isinstance(error.code, int) else int(error.code is not None)
        except BaseException as error:
            sys.excepthook(type(error), error, error.__traceback__)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


@dataclass(frozen=True)
class Ended:
    status: int
    log: str


class Scripts:
    """The client side: one script at a time."""

    def __init__(self, server: subprocess.Popen[str]) -> None:
        self._server = server

    def run(self, *argv: str | Path, cwd: Path, **environment: str) -> Ended:
        log = cwd / f"log.{len(list(cwd.glob('log.*')))}"
        order = {
            "argv": [str(word) for word in argv],
            "cwd": str(cwd),
            "log": str(log),
            "environment": environment,
        }
        assert self._server.stdin is not None and self._server.stdout is not None
        self._server.stdin.write(json.dumps(order) + "\n")
        self._server.stdin.flush()
        status = int(self._server.stdout.readline())
        return Ended(status, log.read_text())


@contextmanager
def script_server(*modules: str) -> Iterator[Scripts]:
    environment = {**os.environ, "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.harness.scripts", *modules],
        cwd=ROOT,
        env=environment,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert server.stdout is not None
        assert server.stdout.readline() == "ready\n"
        yield Scripts(server)
    finally:
        server.kill()
        server.wait()


if __name__ == "__main__":
    serve(sys.argv[1:])
