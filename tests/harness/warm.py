"""A process with torch imported that forks supervisors, which fork their ranks.

Everything else is the real thing: the same `main` functions, real signals, real process groups,
real files. Only `exec` and the import of torch are left out: 20 ms instead of 3 s.
Run as `python -m tests.harness.warm SOCKET [MODULE …]`; the modules are imported beforehand, too.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path

from tasuki.clock import SystemClock
from tasuki.signals import NOTICES

ROOT = Path(__file__).resolve().parents[2]


class ForkedProcess:
    """A child, as `subprocess.Popen` shows it to the supervisor."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._status: int | None = None

    def poll(self) -> int | None:
        if self._status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._status = os.waitstatus_to_exitcode(status)
        return self._status


class JumpingClock(SystemClock):
    """Somebody sets the wall clock an hour forward or back, each second."""

    @staticmethod
    def wall() -> float:
        return time.time() + (3600 if int(time.monotonic()) % 2 else -3600)


def _clock() -> SystemClock:
    """As the environment of this start asks."""
    return JumpingClock() if os.environ.get("TASUKI_TEST_CLOCK") == "jumping" else SystemClock()


def fork_rank(launch) -> ForkedProcess:
    """Instead of `python -m tasuki.train`."""
    from tasuki.train.worker import main

    launch.log.parent.mkdir(parents=True, exist_ok=True)
    # As `start_process` does: what comes before the rank's handlers is held back until then.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, NOTICES)
    pid = os.fork()
    if pid:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return ForkedProcess(pid)
    try:
        signal.set_wakeup_fd(-1)
        for number in (*NOTICES, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        os.environ.clear()
        os.environ.update(launch.environment)
        os.chdir(launch.cwd)
        for path, fd in ((launch.log, 1), (launch.err, 2)):
            target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            os.dup2(target, fd)
        main(list(launch.arguments), _clock())
    finally:
        os._exit(1)


def serve(path: str, modules: list[str]) -> None:
    import torch._dynamo  # torch's optimizers import it when the first one is made: 1.4 s
    import torch._inductor.config  # noqa: F401

    import tasuki.integrations.open
    import tasuki.jobs.__main__
    import tasuki.jobs.loop
    import tasuki.spec.load
    import tasuki.train.evaluate
    import tasuki.train.training
    import tasuki.train.worker  # noqa: F401

    for module in modules:
        import_module(module)
    gc.collect()
    gc.freeze()  # a collection in a child would write to, and so copy, all that it shares with us
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    print("ready", flush=True)
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=_answer, args=(connection, listener), daemon=True).start()


_forked: set[int] = set()
"""Leaders of the groups that live."""


def _end_with_parent() -> None:
    """Tests that are over, or were killed, leave nobody behind: end of file on stdin. What was
    forked has a session of its own, and looks like this server in a list of processes."""
    os.read(0, 1)
    for pid in list(_forked):
        for end in (os.killpg, os.kill):  # it may have no group of its own yet
            with suppress(ProcessLookupError, PermissionError):
                end(pid, signal.SIGKILL)
    os._exit(0)


def _answer(connection: socket.socket, listener: socket.socket) -> None:
    """Fork one supervisor; tell its pid, then its exit status."""
    order = json.loads(connection.makefile("r").readline())
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            listener.close()
            connection.close()
            log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            os.dup2(log, 1)
            os.dup2(log, 2)
            os.environ.update(order["environment"])
            if "script" in order:
                _run_script(order)
            os._exit(_supervise(order["job"]))
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            os._exit(1)
    _forked.add(pid)
    connection.sendall(f"{pid}\n".encode())
    _, status = os.waitpid(pid, 0)
    _forked.discard(pid)
    connection.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
    connection.close()


def _supervise(job: str) -> int:
    # The fork happened in a thread, which is the main thread here as far as the kernel goes;
    # Python must agree before signal handlers can be set.
    from tasuki.jobs.__main__ import main

    return main([job], launch=fork_rank, clock=_clock())


def _run_script(order: dict) -> None:
    """Instead of `python train.py`: the same from its first line on."""
    import faulthandler
    import runpy

    for number in (*NOTICES, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    if limit := os.environ.get("TASUKI_TEST_STACKS_AFTER"):
        faulthandler.dump_traceback_later(float(limit))
    os.chdir(order["folder"])
    words = [order["script"], *order["arguments"]]
    sys.argv, sys.orig_argv = words, ["python", *words]
    sys.path[0] = order["folder"]
    status: object = 0
    try:
        runpy.run_path(words[0], run_name="__main__")
    except SystemExit as left:
        status = left.code
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        status = 1
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    # As at the end of an interpreter, but that torch is not torn down.
    os._exit(status if isinstance(status, int) else 0 if status is None else 1)


class Started:
    """A supervisor with its process group."""

    def __init__(self, connection: socket.socket) -> None:
        self._lines = connection.makefile("r")
        self.pid = int(self._lines.readline())

    def wait(self) -> int:
        return int(self._lines.readline())

    def kill(self, number: int) -> None:
        """A signal to the whole process group: supervisor, ranks, loader workers."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, number)


class Warm:
    """The client side."""

    def __init__(self, path: str) -> None:
        self._path = path

    def start(self, job: Path, **environment: str) -> Started:
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(self._path)
        order = {"job": str(job), "log": str(job / "supervisor.log"), "environment": environment}
        connection.sendall(json.dumps(order).encode() + b"\n")
        return Started(connection)

    def start_script(self, script: Path, *arguments: str, log: Path, **environment: str) -> Started:
        """A script of one's own, in its folder; what it says goes to `log`."""
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(self._path)
        order = {
            "script": script.name,
            "folder": str(script.parent),
            "arguments": arguments,
            "log": str(log),
            "environment": environment,
        }
        connection.sendall(json.dumps(order).encode() + b"\n")
        return Started(connection)


@contextmanager
def warm_server(folder: Path, *modules: str):
    path = str(folder / "warm")
    environment = {**os.environ, "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.harness.warm", path, *modules],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert server.stdout is not None
        assert server.stdout.readline() == b"ready\n"
        yield Warm(path)
    finally:
        assert server.stdin is not None
        server.stdin.close()  # it ends what it has forked, and goes
        try:
            server.wait(timeout=10)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


if __name__ == "__main__":
    serve(sys.argv[1], sys.argv[2:])
