"""A loader worker that dies is heard of where a batch is waited for, never in between."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from tasuki.data import children
from tasuki.data.foreign import iterate


class Stuck(Dataset):
    """Batches come, and then no more."""

    def __len__(self) -> int:
        return 1000

    def __getitem__(self, i: int) -> torch.Tensor:
        if i == 40:
            time.sleep(600)
        return torch.zeros(1)


class Lazy:
    """Starts its workers with the first batch, not with the pass."""

    def __init__(self, loader: DataLoader) -> None:
        self.loader = loader
        self.batches = None

    def __iter__(self):
        self.batches = iter(self.loader)
        yield from self.batches


@pytest.fixture
def passes():
    """Passes through loaders, whose workers do not outlive the test."""
    made = []

    def make(loader):
        made.append(iterate(loader))
        return made[-1]

    yield make
    for one in made:
        children.kill_workers(one.iterator)


def wait_until(is_true) -> None:
    until = time.monotonic() + 60
    while not is_true():
        assert time.monotonic() < until
        time.sleep(0.001)


def kill_one(one) -> None:
    children._nursery.has_news = False
    os.kill(one.iterator._workers[0].pid, signal.SIGKILL)


def test_a_worker_that_dies_between_two_batches_is_an_exception_at_the_next_one_only(passes):
    one = passes(DataLoader(Stuck(), batch_size=4, num_workers=2))
    next(one)
    kill_one(one)
    wait_until(lambda: children._nursery.has_news)  # torch's own handler would raise in here
    with pytest.raises(RuntimeError, match="DataLoader worker"):
        next(one)


def test_a_worker_that_dies_while_a_batch_is_waited_for_is_an_exception_at_once(passes):
    """By the signal, not by torch's own look every five seconds: its cause says which."""
    one = passes(DataLoader(Stuck(), batch_size=4, num_workers=1))
    for _ in range(10):
        next(one)
    threading.Timer(0.1, kill_one, [one]).start()
    with pytest.raises(RuntimeError, match="DataLoader worker") as caught:
        next(one)
    assert "is killed by signal: Killed" in f"{caught.value} {caught.value.__cause__}"


def test_workers_that_are_ended_by_us_are_no_news(passes):
    one = passes(DataLoader(Stuck(), batch_size=4, num_workers=2))
    next(one)
    children._nursery.has_news = False
    children.kill_workers(one.iterator)
    wait_until(lambda: children._nursery.has_news)
    with children.waiting():
        pass


def is_deaf(pid: int) -> bool:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    blocked = next(line.split()[1] for line in lines if line.startswith("SigBlk"))
    return bool(int(blocked, 16) >> (signal.SIGTERM - 1) & 1)


@pytest.mark.parametrize("context", ["fork", pytest.param("spawn", marks=pytest.mark.long)])
def test_workers_of_a_foreign_loader_hear_no_notices_and_we_do(passes, context):
    data = [0.0] * 100
    one = passes(DataLoader(data, batch_size=4, num_workers=2, multiprocessing_context=context))
    next(one)
    assert [is_deaf(worker.pid) for worker in one.iterator._workers] == [True, True]
    assert not is_deaf(os.getpid())


def test_workers_that_start_with_the_first_batch_hear_no_notices_either(passes):
    lazy = Lazy(DataLoader([0.0] * 100, batch_size=4, num_workers=2))
    next(passes(lazy))
    assert [is_deaf(worker.pid) for worker in lazy.batches._workers] == [True, True]
    children.kill_workers(lazy.batches)


def test_workers_that_were_killed_are_no_concern_of_the_next_pass(passes):
    first = passes(DataLoader(Stuck(), batch_size=4, num_workers=2))
    next(first)
    children.kill_workers(first.iterator)
    for worker in first.iterator._workers:
        worker.join()  # dead for certain, and `first` is still there
    second = passes(DataLoader(Stuck(), batch_size=4, num_workers=1))
    signal.raise_signal(signal.SIGCHLD)  # as any child that ends sends it
    assert len(next(second)) == 4
