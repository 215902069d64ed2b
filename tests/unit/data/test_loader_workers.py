"""Workers change nothing about the batches (promise 2), and never outlive their rank."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from tests.unit.data.waiting import is_gone, wait_until
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, TensorDataset

from tasuki.data import children
from tasuki.data.buckets import BucketRule, plan_buckets
from tasuki.data.collate import pad_collate
from tasuki.data.fetch import Fetcher
from tasuki.data.foreign import iterate
from tasuki.data.loader import Loader, _prepare_worker
from tasuki.data.order import Order
from tasuki.data.shares import StepSplit
from tasuki.data.tempo import LoaderSettings
from tasuki.errors import DataError, RunError

SIZES = np.random.default_rng(1).integers(1, 4, 37).tolist()
Seen = list[tuple[int, list[tuple[int, list[float]]]]]
"""Of each step: its samples over all ranks, and (samples, numbers) of each micro-batch."""


class Noisy(Dataset[Tensor]):
    """Every sample draws from all three generators; sizes differ."""

    def __len__(self):
        return len(SIZES)

    def __getitem__(self, index):
        drawn = random.random() + float(np.random.rand())
        return index + drawn + torch.rand(SIZES[index], dtype=torch.float64)


class Deadly(Noisy):
    """Fetching one sample ends the process, as running out of memory does."""

    def __getitem__(self, index):
        if index == 20:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


class Wrong(Noisy):
    def __getitem__(self, index):
        if index == 20:
            raise ValueError("two\nlines: here")
        return super().__getitem__(index)


def make_loader(dataset=None, *, split=None, workers=0, **options):
    dataset = dataset if dataset is not None else Noisy()
    plan = plan_buckets(SIZES, len(SIZES), rule=BucketRule(kind="auto", count=2))
    order = Order(plan, seed=4, stage="s", effective_batch=5)
    first_step = options.pop("first_step", 0)
    return Loader(
        Fetcher(dataset, pad_collate),
        order,
        split or StepSplit(micro_batch=2),
        first_step=first_step,
        total_steps=2 * order.steps_per_epoch,
        settings=LoaderSettings(workers=workers, **options),
    )


def numbers(data):
    parts = data if isinstance(data, list) else data.values() if isinstance(data, dict) else [data]
    return [number for part in parts for number in part.flatten().tolist()]


def see(loader, retunes=None):
    """Everything until the end; other settings after some steps. Training draws meanwhile."""
    seen: Seen = []
    try:
        for number, (batches, num_samples) in enumerate(loader.steps()):
            seen.append((num_samples, [(b.num_samples, numbers(b.data)) for b in batches]))
            torch.rand(1), np.random.rand(), random.random()
            if retunes and number in retunes:
                loader.retune(retunes[number])
    finally:
        loader.stop()
    return seen


@pytest.fixture(scope="module")
def plain():
    return see(make_loader())


def list_children():
    """Without Python's own, which spawning starts once and keeps."""
    pids = {child.pid for child in psutil.Process().children()}
    return {pid for pid in pids if not is_gone(pid) and "resource_tracker" not in command_of(pid)}


def command_of(pid):
    with contextlib.suppress(FileNotFoundError):
        return Path(f"/proc/{pid}/cmdline").read_text()
    return ""


@pytest.fixture(autouse=True)
def no_worker_is_left():
    before = list_children()
    yield
    left = list_children() - before
    try:
        wait_until(lambda: all(map(is_gone, left)), "workers live on")
    finally:
        for pid in left:  # else Python waits for them at its end
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def test_a_worker_whose_rank_is_gone_already_leaves_at_once():
    worker = os.fork()
    if worker == 0:
        _prepare_worker(0, parent=-1)
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1]) == 0


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
    worker = int(os.read(reader, 20))
    os.kill(rank, signal.SIGKILL)
    os.waitpid(rank, 0)
    wait_until(lambda: is_gone(worker), "the worker lives on")


# -- the same batches ---------------------------------------------------------------------------


def drawn(workers):
    """The batches, and what training draws between them while the number of workers changes."""
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    loader = make_loader(workers=workers)
    seen = see(loader, {3: replace(loader.settings, workers=workers + 1)})
    return seen, [random.random(), float(np.random.rand()), float(torch.rand(()))]


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_batches_and_trainings_draws_are_the_same_bit_for_bit_with_any_number_of_workers(plain):
    assert drawn(0) == drawn(1)
    assert see(make_loader(workers=3, prefetch=4)) == plain
    for workers in (0, 2):
        assert see(make_loader(workers=workers, first_step=7)) == plain[7:]


def test_workers_may_change_at_any_step_without_changing_a_batch(plain):
    workers = {1: 1, 3: 0, 6: 2, 9: 0, 12: 1}
    retunes = {step: LoaderSettings(workers=num) for step, num in workers.items()}
    assert see(make_loader(), retunes) == plain


@pytest.mark.long
def test_spawned_workers_give_the_same_batches_too(plain):
    assert see(make_loader(workers=1, context="spawn")) == plain


class Computing(Dataset[Tensor]):
    """Samples whose last bits hang on threads and alignment, if nobody takes care."""

    def __len__(self):
        return 8

    def __getitem__(self, index):
        values = torch.randn(1_000_000, generator=torch.Generator().manual_seed(index))
        return (values * values.sum())[1:69].view(4, 17)


def test_batches_and_what_a_model_makes_of_them_do_not_depend_on_who_computed_them():
    torch.manual_seed(1)
    layer = torch.nn.Linear(17, 8)
    found = []
    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        for workers in (0, 1):
            for collate in (None, lambda samples: samples[0]):
                order = Order(plan_buckets(None, 8), seed=1, stage="s", effective_batch=1)
                loader = Loader(
                    Fetcher(Computing(), collate),
                    order,
                    StepSplit(micro_batch=1),
                    first_step=0,
                    total_steps=8,
                    settings=LoaderSettings(workers=workers),
                )
                batches = [batch.data for step, _ in loader.steps() for batch in step]
                loader.stop()
                assert torch.get_num_threads() == 3
                found.append([layer(batch).detach().numpy().tobytes() for batch in batches])
    finally:
        torch.set_num_threads(threads)
    assert found[0] == found[2]
    assert found[1] == found[3]


def test_every_sample_of_an_epoch_comes_once_over_all_ranks_whatever_it_costs():
    costs = np.array([7 * size for size in SIZES])
    data = TensorDataset(torch.arange(len(SIZES), dtype=torch.float64))

    def taken(world, workers):
        splits = [
            StepSplit(rank=rank, world=world, micro_batch=9, costs=costs, budget=30)
            for rank in range(world)
        ]
        ranks = [see(make_loader(data, split=split, workers=workers)) for split in splits]
        return [
            sorted(x for _, batches in step for count, own in batches if count for x in own)
            for step in zip(*ranks, strict=True)
        ]

    alone = taken(1, 0)
    assert taken(3, 1) == alone
    epoch = alone[: len(alone) // 2]
    assert sorted(number for step in epoch for number in step) == list(range(len(SIZES)))


# -- workers that come, go and die --------------------------------------------------------------


def test_workers_are_gone_after_a_change_and_after_the_end():
    others = list_children()
    loader = make_loader(workers=2)
    steps = loader.steps()
    list(next(steps)[0])
    first = list_children() - others
    assert len(first) == 2
    loader.retune(LoaderSettings(workers=1))
    wait_until(lambda: all(map(is_gone, first)))
    list(next(steps)[0])
    second = list_children() - others - first
    assert len(second) == 1
    loader.stop()
    wait_until(lambda: all(map(is_gone, second)))
    loader.stop()  # once more does no harm


def test_an_error_in_a_worker_says_what_it_says_without_workers():
    said = []
    for workers in (0, 1):
        with pytest.raises(DataError) as caught:
            see(make_loader(Wrong(), workers=workers))
        said.append((caught.value.message, caught.value.hint))
    assert said[0] == said[1]
    words, place = said[0][0].split(" (at ")
    assert words == "sample 20 cannot be read: ValueError: two\nlines: here"
    assert place.startswith("test_loader_workers.py:")
    assert "`__getitem__`" in said[0][1]


def test_a_worker_that_is_killed_gives_one_clear_message():
    """In a process of its own: torch tells of a dead worker wherever the main thread is."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        words = "nothing"
        try:
            see(make_loader(Deadly(), workers=1))
        except RunError as error:
            words = f"{error.message}|{error.hint}"
        except BaseException as error:
            words = repr(error)
        os.write(writer, words.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as stream:
        words = stream.read()
    os.waitpid(pid, 0)
    assert words.startswith("a loader worker is gone")
    assert "|often memory: fewer `loader.workers`" in words


# -- loaders of others ----------------------------------------------------------------------------


class Stuck(Dataset):
    """Batches come, and then no more."""

    def __len__(self):
        return 1000

    def __getitem__(self, i):
        if i == 40:
            time.sleep(600)
        return torch.zeros(1)


@pytest.fixture
def passes():
    """Passes through loaders, whose workers do not outlive the test."""
    made = []

    def make(loader):
        made.append(iterate(loader))
        return made[-1]

    make.made = made
    yield make
    for one in made:
        children.kill_workers(one.iterator)


def kill_one(one):
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
    threading.Timer(0.1, kill_one, [one]).start()  # before or during the wait: both must do
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


def is_deaf(pid):
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    blocked = next(line.split()[1] for line in lines if line.startswith("SigBlk"))
    return bool(int(blocked, 16) >> (signal.SIGTERM - 1) & 1)


@pytest.mark.parametrize("context", ["fork", pytest.param("spawn", marks=pytest.mark.long)])
def test_workers_of_a_foreign_loader_hear_no_notices_and_we_do(passes, context):
    """Also those that start with the first batch, not with the pass."""
    loader = DataLoader([0.0] * 100, 4, num_workers=2, multiprocessing_context=context)
    started = []

    def lazy():
        started.append(iter(loader))
        yield from started[0]

    for one in (passes(loader), passes(lazy())):
        next(one)
    for batches in (passes.made[0].iterator, *started):
        assert [is_deaf(worker.pid) for worker in batches._workers] == [True, True]
        children.kill_workers(batches)
    assert not is_deaf(os.getpid())


def test_workers_that_were_killed_are_no_concern_of_the_next_pass(passes):
    first = passes(DataLoader(Stuck(), batch_size=4, num_workers=2))
    next(first)
    children.kill_workers(first.iterator)
    for worker in first.iterator._workers:
        worker.join()  # dead for certain, and `first` is still there
    second = passes(DataLoader(Stuck(), batch_size=4, num_workers=1))
    signal.raise_signal(signal.SIGCHLD)  # as any child that ends sends it
    assert len(next(second)) == 4
