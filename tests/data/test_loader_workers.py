"""Loader workers never outlive their rank."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from tasuki.data.loader import _prepare_worker


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except FileNotFoundError:
        return True


def test_a_worker_dies_with_its_rank_however_early_the_rank_is_killed():
    reader, writer = os.pipe()
    rank = os.fork()
    if rank == 0:
        parent = os.getpid()
        worker = os.fork()
        if worker == 0:
            _prepare_worker(0, parent=parent)
            os.write(writer, f"{os.getpid()}\n".encode())
            time.sleep(600)
        time.sleep(600)
    worker = int(os.read(reader, 20))
    os.kill(rank, signal.SIGKILL)
    os.waitpid(rank, 0)
    until = time.monotonic() + 20
    while not is_gone(worker):
        assert time.monotonic() < until, "the worker lives on"
        time.sleep(0.01)


def test_a_worker_whose_rank_is_gone_already_leaves_at_once():
    worker = os.fork()
    if worker == 0:
        _prepare_worker(0, parent=-1)
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1]) == 0
