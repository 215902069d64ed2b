"""The other tools' environment, and processes that do one thing after another when asked.

The peers live in `.work/peers`, a venv of its own, with the versions of peers.txt: made at the
first use, used again later. `BENCH_PEERS=0` leaves them out. torch is the same build on both sides.

A `Worker` is a process of either environment that answers orders, one JSON line each. Some keep
their state from order to order (`serve`), some fork for each (`serve_forks`), so that every order
finds a fresh process with the imports done, which may be killed. Used by save.py, start.py,
resume.py, promises.py, tokens.py and pack.py. Knows nothing of tasuki, and runs in all
environments.
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
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

BENCH = Path(__file__).resolve().parent
ROOT = BENCH.parent
PEERS = ROOT / ".work" / "peers"
PINS = BENCH / "peers.txt"
PACKAGES = (
    *("torch", "lightning", "accelerate", "transformers", "torchdata", "datasets"),
    "pytorch-ignite",
)
ANSWERS = "BENCH_ANSWERS"
"""In a worker's environment: the descriptor on which it answers; libraries print on the others."""
Order = dict[str, Any]


class NoPeers(Exception):
    """Why the peers are left out."""


# -- the environment --------------------------------------------------------------------------


def peers_python() -> Path:
    """The interpreter that has the peers; made on first use."""
    return python_with(PACKAGES, folder=PEERS, pins=PINS, size="1.5 GB, a minute or two")


def python_with(packages: Sequence[str], *, folder: Path, pins: Path, size: str) -> Path:
    """The interpreter of a venv of its own; made on first use."""
    if os.environ.get("BENCH_PEERS") == "0":
        raise NoPeers("BENCH_PEERS=0")
    ready, python = folder / ".ready", folder / "bin" / "python"
    versions = pins.read_text()
    if not ready.is_file() or ready.read_text() != versions:
        say(f"installing {packages[0]} … into {folder} ({size}; BENCH_PEERS=0: not)")
        try:
            _install(packages, folder, pins)
        except (OSError, subprocess.SubprocessError) as error:
            raise NoPeers(f"they cannot be installed: {error}") from error
        ready.write_text(versions)
    return python


def _install(packages: Sequence[str], folder: Path, pins: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    quiet = ["--quiet", "--no-cache-dir", "--disable-pip-version-check"]
    subprocess.run(
        [str(folder / "bin" / "python"), "-m", "pip", "install", *quiet, *packages],
        env={**os.environ, "PIP_CONSTRAINT": str(pins)},
        check=True,
    )


def find_peers() -> Path | None:
    """As `peers_python`; says why when there are none."""
    try:
        return peers_python()
    except NoPeers as why:
        say(f"the peers are left out: {why}")
        return None


def versions_of(python: Path) -> dict[str, str]:
    """Of the packages that are compared, as this interpreter has them."""
    code = (
        "import json, sys; from importlib.metadata import version as v; "
        "print(json.dumps({n: v(n) for n in sys.argv[1:]}))"
    )
    found = subprocess.run(
        [str(python), "-c", code, *PACKAGES], check=True, capture_output=True, text=True
    )
    versions: dict[str, str] = json.loads(found.stdout)
    return versions


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


# -- asking a worker --------------------------------------------------------------------------


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


# -- being a worker ---------------------------------------------------------------------------


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


def end_well_when_told() -> None:
    """A bench that is terminated removes its files, unmounts its disks and ends its workers."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


# -- talk -------------------------------------------------------------------------------------

_BEGAN = time.monotonic()


def say(text: str) -> None:
    """Progress, for who waits."""
    print(f"[{time.monotonic() - _BEGAN:4.0f} s] {text}", file=sys.stderr, flush=True)
