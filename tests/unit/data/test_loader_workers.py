"""Workers change nothing about the batches (promise 2), and never outlive their rank."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import psutil
import pytest
import torch
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset

from tasuki.data.buckets import BucketRule, plan_buckets
from tasuki.data.collate import pad_collate
from tasuki.data.fetch import Fetcher
from tasuki.data.hdf5.dataset import Hdf5Dataset
from tasuki.data.loader import Loader, _prepare_worker
from tasuki.data.order import Order
from tasuki.data.shares import StepSplit
from tasuki.data.tempo import LoaderSettings
from tasuki.errors import DataError, RunError

SIZES = np.random.default_rng(1).integers(1, 4, 37).tolist()
Seen = list[tuple[int, list[tuple[int, list[float]]]]]
"""Of each step: its samples over all ranks, and (samples, numbers) of each micro-batch."""


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except FileNotFoundError:
        return True


class Noisy(Dataset[Tensor]):
    """Every sample draws from all three generators; sizes differ."""

    def __len__(self) -> int:
        return len(SIZES)

    def __getitem__(self, index: int) -> Tensor:
        drawn = random.random() + float(np.random.rand())
        return index + drawn + torch.rand(SIZES[index], dtype=torch.float64)


class Deadly(Noisy):
    """Fetching one sample ends the process, as running out of memory does."""

    def __getitem__(self, index: int) -> Tensor:
        if index == 20:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


class Wrong(Noisy):
    def __getitem__(self, index: int) -> Tensor:
        if index == 20:
            raise ValueError("two\nlines: here")
        return super().__getitem__(index)


def make_loader(
    dataset: Any = None, *, split: StepSplit | None = None, workers: int = 0, **options: Any
) -> Loader:
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


def numbers(data: Any) -> list[float]:
    parts = data if isinstance(data, list) else data.values() if isinstance(data, dict) else [data]
    return [number for part in parts for number in part.flatten().tolist()]


def see(loader: Loader, retunes: dict[int, LoaderSettings] | None = None) -> Seen:
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
def plain() -> Seen:
    return see(make_loader())


def children() -> set[int]:
    """Without Python's own, which spawning starts once and keeps."""
    pids = {child.pid for child in psutil.Process().children()}
    return {pid for pid in pids if not is_gone(pid) and "resource_tracker" not in command_of(pid)}


def command_of(pid: int) -> str:
    with contextlib.suppress(FileNotFoundError):
        return Path(f"/proc/{pid}/cmdline").read_text()
    return ""


def wait_until_gone(pids: set[int]) -> None:
    until = time.monotonic() + 20
    while not all(is_gone(pid) for pid in pids):
        assert time.monotonic() < until, "workers live on"
        time.sleep(0.01)


@pytest.fixture(autouse=True)
def no_worker_is_left() -> Iterator[None]:
    before = children()
    yield
    left = children() - before
    try:
        wait_until_gone(left)
    finally:
        for pid in left:  # else Python waits for them at its end
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


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


# -- the same batches ---------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize(("workers", "prefetch"), [(1, 1), (1, 4), (3, 2)])
def test_batches_are_the_same_bit_for_bit_with_any_number_of_workers(
    plain: Seen, workers: int, prefetch: int
) -> None:
    assert see(make_loader(workers=workers, prefetch=prefetch)) == plain


class Computing(Dataset[Tensor]):
    """Samples whose last bits hang on threads and alignment, if nobody takes care."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Tensor:
        values = torch.randn(1_000_000, generator=torch.Generator().manual_seed(index))
        return (values * values.sum())[1:69].view(4, 17)


def test_batches_and_what_a_model_makes_of_them_do_not_depend_on_who_computed_them() -> None:
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


@pytest.mark.long
def test_spawned_workers_give_the_same_batches_too(plain: Seen) -> None:
    assert see(make_loader(workers=1, context="spawn")) == plain


def test_workers_may_change_at_any_step_without_changing_a_batch(plain: Seen) -> None:
    steps = len(plain)
    settings = [LoaderSettings(workers=w, prefetch=p) for w, p in ((1, 1), (0, 2), (2, 3), (1, 2))]
    retunes = {number: settings[number % 4] for number in range(0, steps, 3)}
    assert see(make_loader(workers=2), retunes) == plain


def test_a_loader_that_begins_in_the_middle_gives_the_rest(plain: Seen) -> None:
    for workers in (0, 2):
        assert see(make_loader(workers=workers, first_step=7)) == plain[7:]


def test_training_draws_the_same_random_numbers_with_any_number_of_workers() -> None:
    def drawn(workers: int) -> list[float]:
        random.seed(1), np.random.seed(1), torch.manual_seed(1)
        loader = make_loader(workers=workers)
        found = []
        for number, (batches, _) in enumerate(loader.steps()):
            list(batches)
            found += [random.random(), float(np.random.rand()), float(torch.rand(()))]
            if number == 3:
                loader.retune(replace(loader.settings, workers=workers + 1))
        loader.stop()
        return found

    assert drawn(0) == drawn(1)


def test_every_sample_of_an_epoch_comes_once_over_all_ranks_whatever_it_costs() -> None:
    costs = np.array([7 * size for size in SIZES])
    data = TensorDataset(torch.arange(len(SIZES), dtype=torch.float64))

    def taken(world: int, workers: int) -> list[list[float]]:
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


def test_a_file_is_read_the_same_by_forked_workers_while_this_process_reads_it_too(
    tmp_path: Path,
) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["n"] = SIZES
        rows = np.random.default_rng(1).random((len(SIZES), 5))
        file.create_dataset("x", data=rows, chunks=(4, 5), compression="gzip")
    data = Hdf5Dataset(tmp_path / "x.h5")
    expected = see(make_loader(data))
    loader = make_loader(data, workers=2)
    found: Seen = []
    for batches, num_samples in loader.steps():
        found.append((num_samples, [(b.num_samples, numbers(b.data)) for b in batches]))
        assert data[len(found) % len(SIZES)]["x"].tolist() == rows[len(found) % len(SIZES)].tolist()
    loader.stop()
    assert found == expected


# -- workers that come, go and die --------------------------------------------------------------


def test_workers_are_gone_after_a_change_and_after_the_end() -> None:
    others = children()
    loader = make_loader(workers=2)
    steps = loader.steps()
    list(next(steps)[0])
    first = children() - others
    assert len(first) == 2
    loader.retune(LoaderSettings(workers=1))
    wait_until_gone(first)
    list(next(steps)[0])
    second = children() - others - first
    assert len(second) == 1
    loader.stop()
    wait_until_gone(second)
    loader.stop()  # once more does no harm


def test_an_error_in_a_worker_says_what_it_says_without_workers() -> None:
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


def test_a_worker_that_is_killed_gives_one_clear_message() -> None:
    """In a process of its own: torch tells of a dead worker wherever the main thread is."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        words = "nothing"
        try:
            for batches, _ in make_loader(Deadly(), workers=1).steps():
                list(batches)
        except RunError as error:
            words = f"{error.message}|{error.hint}"
        except BaseException as error:
            words = repr(error)
        os.write(writer, words.encode())
        os._exit(0)
    os.close(writer)
    words = os.read(reader, 4096).decode()
    os.close(reader)
    os.waitpid(pid, 0)
    assert words.startswith("a loader worker is gone")
    assert "|often memory: fewer `loader.workers`" in words
