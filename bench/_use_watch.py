"""`tasuki watch`: the share of a core it takes while runs go on, at its default rate.

In a real terminal (a pty of 100 × 30), beside runs that write what ranks write: a sign of life and
ten lines of metrics every second. CPU time of the whole process, after its start.
"""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from contextlib import suppress
from pathlib import Path

import psutil

from _measure import Spread, spread
from _run_folders import FakeRun, environment, make_finished, make_running

GOAL = 2.0
"""Percent of a core."""
_ROUNDS = 5
_ROUND_S = float(os.environ.get("BENCH_SECONDS", "4"))
_SETTLE_S = 6.0
_WITHIN_S = 60.0


def measure() -> list[tuple[str, float | Spread, str, float | None]]:
    with tempfile.TemporaryDirectory(prefix="tasuki-bench-") as folder:
        one = make_running(Path(folder) / "one" / "run", rows=50_000, hours=24)
        page = _watched(Path(folder) / "one", [one])
        many = Path(folder) / "many"
        live = [make_running(many / f"live-{n}", rows=1000, hours=1) for n in range(4)]
        make_finished(many, 100)
        listed = _watched(many, live)
        for fake in [one, *live]:
            fake.close()
    return [
        ("watch, one run of a day, 50,000 lines of metrics", page, "% of a core", GOAL),
        ("watch, 4 running and 100 finished runs", listed, "% of a core", GOAL),
    ]


def _watched(runs: Path, live: list[FakeRun]) -> Spread:
    """Percent of a core, in rounds."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
    command = [sys.executable, "-m", "tasuki", "watch", "--runs", str(runs)]
    process = subprocess.Popen(
        command, env=environment(), stdin=theirs, stdout=theirs, stderr=theirs, close_fds=True
    )
    os.close(theirs)
    seen: list[int] = []
    reader = threading.Thread(target=_drain, args=(ours, seen), daemon=True)
    reader.start()
    try:
        until = time.monotonic() + _WITHIN_S
        while not seen:
            assert time.monotonic() < until, "nothing was drawn"
            _let_work(live, 1.0)
        _let_work(live, _SETTLE_S)
        found = []
        for _ in range(_ROUNDS):
            before, drawn = _cpu_s(process.pid), sum(seen)
            began = time.monotonic()
            _let_work(live, _ROUND_S)
            found.append(100 * (_cpu_s(process.pid) - before) / (time.monotonic() - began))
            assert sum(seen) > drawn, "nothing was drawn"
        return spread(found)
    finally:
        with suppress(OSError):
            os.write(ours, b"q")
        try:
            code = process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        assert code == 0, f"watch ended with {code}"
        os.close(ours)


def _let_work(live: list[FakeRun], seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for fake in live:
            fake.work(100, rows=10)
        time.sleep(min(1.0, max(0.0, until - time.monotonic())))


def _drain(fd: int, seen: list[int]) -> None:
    with suppress(OSError):
        while part := os.read(fd, 65536):
            seen.append(len(part))


def _cpu_s(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)
