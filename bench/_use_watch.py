"""`watch`: what `tasuki watch` takes of a core while runs go on, at its default rate.

In a pseudo-terminal of 100 × 30, next to runs that write what ranks write: a heartbeat and ten
lines of metrics every second. CPU time of the whole process, after its start. A part of use.py.
"""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
import threading
import time
from contextlib import suppress
from pathlib import Path

from _measure import MIN_ROUNDS, Figure, Spread, sized, spread
from _run_folders import FakeRun, cpu_s, environment, make_finished, make_running

GOAL = 2.0
"""Percent of a core."""
ROUND_S, SETTLE_S = sized((4.0, 6.0), smoke=(2.5, 0.5))
NUM_ROWS, HOURS, NUM_FINISHED = sized((50_000, 24, 100), smoke=(100, 1, 2))
_WITHIN_S = 60.0


def measure(folder: Path) -> list[Figure]:
    one = make_running(folder / "one" / "run", rows=NUM_ROWS, hours=HOURS)
    alone = _watch(folder / "one", [one])
    many = folder / "many"
    live = [make_running(many / f"live-{n}", rows=1000, hours=1) for n in range(4)]
    make_finished(many, NUM_FINISHED)
    listed = _watch(many, live)
    for fake in [one, *live]:
        fake.close()
    what = "`tasuki watch` of"
    several = f"{what} 4 running and {NUM_FINISHED} finished runs"
    return [
        Figure(f"{what} a run of {HOURS} h, {NUM_ROWS:,} rows", "", alone, "% of a core", GOAL),
        Figure(several, "", listed, "% of a core", GOAL),
    ]


def _watch(runs: Path, live: list[FakeRun]) -> Spread:
    """Percent of a core, in rounds."""
    controller, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
    command = [sys.executable, "-m", "tasuki", "watch", "--runs", str(runs)]
    process = subprocess.Popen(
        command, env=environment(), stdin=terminal, stdout=terminal, stderr=terminal
    )
    os.close(terminal)
    drawn: list[int] = []
    threading.Thread(target=_drain, args=(controller, drawn), daemon=True).start()
    try:
        until = time.monotonic() + _WITHIN_S
        while not drawn:
            assert time.monotonic() < until, "watch did not draw"
            _let_work(live, 1.0)
        _let_work(live, SETTLE_S)
        percents = []
        for _ in range(MIN_ROUNDS):
            before, drawn_before, started = cpu_s(process.pid), sum(drawn), time.monotonic()
            _let_work(live, ROUND_S)
            percents.append(100 * (cpu_s(process.pid) - before) / (time.monotonic() - started))
            assert sum(drawn) > drawn_before, "watch did not draw"
        return spread(percents)
    finally:
        with suppress(OSError):
            os.write(controller, b"q")
        try:
            status = process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        assert status == 0, f"watch ended with {status}"
        os.close(controller)


def _let_work(live: list[FakeRun], seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for fake in live:
            fake.work(100, rows=10)
        time.sleep(min(1.0, max(0.0, until - time.monotonic())))


def _drain(fd: int, drawn: list[int]) -> None:
    with suppress(OSError):
        while output := os.read(fd, 65536):
            drawn.append(len(output))
