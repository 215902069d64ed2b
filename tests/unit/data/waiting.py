"""Waiting for what other processes do, however slow the machine is."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path


def wait_until(is_so: Callable[[], object], what: str = "it is not so") -> None:
    until = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < until, what
        time.sleep(0.005)


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except FileNotFoundError:
        return True
