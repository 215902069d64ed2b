"""The other tools' environments, and worker processes that carry out one order after another.

The other tools live in `.work/peers`, a venv with the versions of peers.txt: made at the first use,
used again later. `BENCH_PEERS=0` leaves them out. A smoke run makes no environment: it uses one
that is there, else this one, and leaves out the tools that are not installed.

A `Worker` is a process of either environment that takes orders, one JSON line each. Some keep
their state from order to order (`orders`), some fork for each (`serve_forks`), so that every order
gets a fresh process with the imports done, which may be killed. Imports nothing of tasuki, and
runs in all environments.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from _measure import IS_SMOKE

BENCH = Path(__file__).resolve().parent
ROOT = BENCH.parent
PACKAGES = {
    "peers": (*("torch", "lightning", "accelerate", "transformers", "datasets", "pytorch-ignite"),),
    "solver": ("ortools",),
}
"""By environment: what is installed there, with the versions of `<environment>.txt`."""
ANSWERS = "BENCH_ANSWERS"
"""In a worker's environment: the descriptor of its replies; libraries print on the others."""
Order = dict[str, Any]


# -- environments -----------------------------------------------------------------------------


def find_peers(*packages: str, name: str = "peers") -> dict[str, Path]:
    """The interpreter of each of these packages; without those that are left out."""
    if os.environ.get("BENCH_PEERS") == "0":
        say(f"without {', '.join(packages)}: BENCH_PEERS=0")
        return {}
    folder, pins = ROOT / ".work" / name, BENCH / f"{name}.txt"
    ready, python = folder / ".ready", folder / "bin" / "python"
    versions = pins.read_text()
    if not ready.is_file() or ready.read_text() != versions:
        if IS_SMOKE:
            return _installed_here(packages)
        say(f"installing {', '.join(PACKAGES[name])} into {folder} (BENCH_PEERS=0: not)")
        try:
            _install(PACKAGES[name], folder, pins)
        except (OSError, subprocess.SubprocessError) as error:
            say(f"without {', '.join(packages)}: cannot be installed: {error}")
            return {}
        ready.write_text(versions)
    return dict.fromkeys(packages, python)


def _installed_here(packages: tuple[str, ...]) -> dict[str, Path]:
    found = {}
    for package in packages:
        with contextlib.suppress(metadata.PackageNotFoundError):
            metadata.version(package)
            found[package] = Path(sys.executable)
    if missing := [package for package in packages if package not in found]:
        say(f"without {', '.join(missing)}: not installed")
    return found


def _install(packages: tuple[str, ...], folder: Path, pins: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    quiet = ["--quiet", "--no-cache-dir", "--disable-pip-version-check"]
    subprocess.run(
        [str(folder / "bin" / "python"), "-m", "pip", "install", *quiet, *packages],
        env={**os.environ, "PIP_CONSTRAINT": str(pins)},
        check=True,
    )


def environment() -> dict[str, str]:
    """Of every process that is measured: one thread, nothing from the network, no settings."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("TASUKI_", "SLURM_"))}
    return kept | {
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONWARNINGS": "ignore",
        "PYTHONHASHSEED": "0",
    }


# -- giving orders --------------------------------------------------------------------------


class Worker:
    """A process of `python script`, which answers orders."""

    def __init__(self, python: Path | str, script: str, *arguments: str, log: Path) -> None:
        reader, writer = os.pipe()
        self._log = log
        with log.open("ab") as file:
            self._process = subprocess.Popen(
                [str(python), str(BENCH / script), *arguments],
                env={**environment(), ANSWERS: str(writer)},
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=file,
                pass_fds=[writer],
            )
        os.close(writer)
        self._answers = os.fdopen(reader)

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, **order: Any) -> Any:
        """Send an order and wait for its answer."""
        self.send(**order)
        return self.hear()

    def send(self, **order: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        self._process.stdin.flush()

    def hear(self) -> Any:
        line = self._answers.readline()
        if not line:
            tail = self._log.read_text(errors="replace")[-4000:]
            sys.exit(f"error: a worker of the bench died; the end of its log:\n{tail}")
        return json.loads(line)

    def close(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._answers.close()


class Forked:
    """One order that a forking worker works on, in a session of its own."""

    def __init__(self, worker: Worker, order: Order) -> None:
        self._worker = worker
        self.pid: int = worker.ask(**order)["pid"]

    def kill(self, number: int) -> None:
        """A signal to the process group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def wait(self) -> int:
        """The exit status, negative for a signal."""
        status: int = self._worker.hear()["status"]
        return status


# -- taking orders ---------------------------------------------------------------------------


def orders() -> Iterator[Order]:
    """Until the bench closes our stdin."""
    for line in sys.stdin:
        yield json.loads(line)


def answer(value: Any) -> None:
    os.write(int(os.environ[ANSWERS]), json.dumps(value).encode() + b"\n")


def serve_forks(work: Callable[[Order], None]) -> None:
    """For each order a fork, its pid, and later its exit status. Ends with its parent."""
    for order in orders():
        pid = os.fork()
        if pid == 0:
            _work_in_fork(work, order)
        answer({"pid": pid})
        _, status = os.waitpid(pid, 0)
        answer({"status": os.waitstatus_to_exitcode(status)})


def _work_in_fork(work: Callable[[Order], None], order: Order) -> None:
    """Output goes to the order's `log`. Does not return."""
    try:
        os.setsid()
        os.close(int(os.environ.pop(ANSWERS)))
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((nothing, 0), (log, 1), (log, 2)):
            os.dup2(source, target)
        work(order)
        os._exit(0)
    except SystemExit as end:
        os._exit(end.code if isinstance(end.code, int) else int(end.code is not None))
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)


# -- progress ---------------------------------------------------------------------------------

_BEGAN = time.monotonic()


def say(text: str) -> None:
    """Progress, for who waits."""
    print(f"[{time.monotonic() - _BEGAN:4.0f} s] {text}", file=sys.stderr, flush=True)
