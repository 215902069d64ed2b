"""Fetch the micro-batches of a rank, step after step, in the pure order.

Each sample is fetched under random numbers seeded by (seed, stage, epoch, position), so that the
number of loader workers and how far they read ahead never matter. In this process the random
states of training are put back after each fetch.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset, default_collate

from tasuki.data.order import Order, sample_seeds
from tasuki.data.split import micro_batches, share_of_rank
from tasuki.errors import DataError, RunError, TasukiError

Collate = Callable[[list[Any]], Any]
_Request = list[tuple[int, int | None]]
"""(dataset index, random seed) of each sample of a micro-batch; None: nothing is drawn."""

_SIGNAL_ON_PARENT_DEATH = 1
"""Linux's PR_SET_PDEATHSIG."""
_DRAW_NOTHING = (TensorDataset, list, tuple, range)
"""Data whose samples are certain not to draw random numbers: seeding costs 10 µs a sample."""


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """What a rank puts through the model at once."""

    data: Any
    num_samples: int
    """0: this rank has no sample in this step and only takes part."""


@dataclass(frozen=True, slots=True)
class Share:
    """A rank's part of one step."""

    requests: tuple[_Request, ...]
    counts: tuple[int, ...]
    num_samples: int
    """Of the whole step, over all ranks."""


def share_of_step(
    order: Order,
    stage_step: int,
    *,
    micro_batch: int,
    rank: int,
    world: int,
    is_seeded: bool = True,
) -> Share:
    """Which samples a rank works on in a step; where it has none, borrowed ones that count 0."""
    epoch, step = divmod(stage_step, order.steps_per_epoch)
    samples = order.step(epoch, step)
    indices = samples.indices.tolist()
    seeds: list[int | None] = [None] * len(indices)
    if is_seeded:
        seeds = sample_seeds(order.seed, order.stage, epoch, samples.positions).tolist()
    mine = share_of_rank(len(indices), rank, world)
    if not mine:
        # A whole micro-batch, not one sample: BatchNorm refuses to learn from a single one.
        lent = list(zip(indices[:micro_batch], seeds, strict=False))
        return Share((lent,), (0,), len(indices))
    ranges = micro_batches(mine, micro_batch)
    requests = tuple([(indices[i], seeds[i]) for i in piece] for piece in ranges)
    return Share(requests, tuple(len(piece) for piece in ranges), len(indices))


class Loader:
    """Micro-batches of one rank from a given step to the end of the stage."""

    def __init__(
        self,
        dataset: Any,
        order: Order,
        *,
        collate: Collate | None,
        micro_batch: int,
        rank: int,
        world: int,
        first_step: int,
        total_steps: int,
        workers: int = 0,
        prefetch: int = 2,
        context: str = "fork",
        pin: bool = False,
    ) -> None:
        self._is_seeded = collate is not None or type(dataset) not in _DRAW_NOTHING
        split = {"micro_batch": micro_batch, "rank": rank, "world": world}
        self._shares = (
            share_of_step(order, step, **split, is_seeded=self._is_seeded)
            for step in range(first_step, total_steps)
        )
        self._collate = collate or default_collate
        self._dataset = dataset
        self._loader: DataLoader[Any] | None = None
        if workers:
            self._queue = _RequestQueue(
                order,
                micro_batch=micro_batch,
                rank=rank,
                world=world,
                steps=(first_step, total_steps),
            )
            self._loader = DataLoader(
                _SeededDataset(dataset),
                batch_sampler=self._queue,
                num_workers=workers,
                prefetch_factor=prefetch,
                collate_fn=self._collate,
                multiprocessing_context=context,
                pin_memory=pin,
                worker_init_fn=partial(_prepare_worker, parent=os.getpid()),
            )
            with kept_random_states():  # an iterator of a DataLoader draws a seed when it is made
                self._batches = iter(self._loader)

    def steps(self) -> Iterator[tuple[Iterator[MicroBatch], int]]:
        """For each step its micro-batches (fetched when asked for) and its number of samples."""
        for share in self._shares:
            yield self._fetch(share), share.num_samples

    def _fetch(self, share: Share) -> Iterator[MicroBatch]:
        for request, count in zip(share.requests, share.counts, strict=True):
            yield MicroBatch(self._next_batch(request), count)

    def _next_batch(self, request: _Request) -> Any:
        if self._loader is None and not self._is_seeded:
            return self._collate(fetch(self._dataset, request))
        if self._loader is None:
            with kept_random_states():
                return self._collate(fetch(self._dataset, request))
        try:
            return next(self._batches)
        except TasukiError as error:
            # torch puts the worker's whole traceback into the message: keep its last line.
            words = error.message.strip().splitlines()[-1].partition(": ")[2]
            raise type(error)(words or error.message, hint=error.hint) from None
        except RuntimeError as error:
            if "DataLoader worker (pid" not in str(error):
                raise
            raise RunError(
                f"a loader worker is gone: {error}",
                hint="often memory: fewer `loader.workers`, or a smaller `prefetch`",
            ) from error

    def stop(self) -> None:
        """Kill the workers by pid and forget them: leaving must not wait for anybody.

        torch's SIGCHLD handler raises in the main thread when a worker dies, even inside a save.
        """
        if self._loader is None:
            return
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for worker in getattr(self._batches, "_workers", ()):
            with contextlib.suppress(ProcessLookupError, TypeError):
                os.kill(worker.pid, signal.SIGKILL)


def fetch(dataset: Any, request: Sequence[tuple[int, int | None]]) -> list[Any]:
    """Read samples, each under its own random numbers."""
    samples = []
    for index, seed in request:
        if seed is not None:
            seed_host(seed)
        try:
            samples.append(dataset[index])
        except TasukiError:
            raise
        except Exception as error:
            raise DataError(
                f"sample {index} cannot be read: {type(error).__name__}: {error}",
                hint="`build_dataset` returned a data set whose `__getitem__` fails there",
            ) from error
    return samples


def seed_everything(seed: int) -> None:
    """Python's, numpy's and torch's global random numbers, the GPU's too."""
    seed_host(seed)
    if torch.cuda.is_available():
        torch.cuda.manual_seed(seed)


def seed_host(seed: int) -> None:
    """Those a sample is fetched with."""
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    torch.default_generator.manual_seed(seed)


@contextlib.contextmanager
def kept_random_states() -> Iterator[None]:
    """Whatever is drawn inside, the training's random numbers go on as if nothing was."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])


class _RequestQueue:
    """The requests of all steps to come, as a batch sampler. Picklable, for spawned workers."""

    def __init__(
        self, order: Order, *, micro_batch: int, rank: int, world: int, steps: tuple[int, int]
    ) -> None:
        self._order = order
        self._micro_batch, self._rank, self._world = micro_batch, rank, world
        self._steps = steps

    def __iter__(self) -> Iterator[_Request]:
        for step in range(*self._steps):
            share = share_of_step(
                self._order,
                step,
                micro_batch=self._micro_batch,
                rank=self._rank,
                world=self._world,
            )
            yield from share.requests


class _SeededDataset(Dataset[Any]):
    """Hands a whole request to a worker: DataLoader calls `__getitems__` where there is one."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitems__(self, request: _Request) -> list[Any]:
        return fetch(self.dataset, request)


def _prepare_worker(_: int, *, parent: int) -> None:
    # torch's own watch begins later: a worker whose rank dies before that would live for ever.
    ctypes.CDLL(None).prctl(_SIGNAL_ON_PARENT_DEATH, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)
    # A notice goes to the whole process group: a worker that dies of it would break the last steps
    # and, through torch's SIGCHLD handler, the save.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    torch.set_num_threads(1)
