"""The micro-batches of a rank, step after step, fetched here or by worker processes.

How they are fetched changes nothing about them (fetch.py), so the number of workers may change at
any step boundary: `retune`. In this process the random states of training are put back after each
fetch. tempo.py decides; this file only does.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import threading
import time
import traceback
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch.utils.data import DataLoader, Dataset

from tasuki.data.fetch import Fetcher, Request, kept_random_states
from tasuki.data.handing import pack, unpack
from tasuki.data.order import Order
from tasuki.data.shares import Share, StepSplit, share_of_step
from tasuki.data.tempo import LoaderSettings
from tasuki.errors import RunError, TasukiError

_SIGNAL_ON_PARENT_DEATH = 1
"""Linux's PR_SET_PDEATHSIG."""


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """What a rank puts through the model at once."""

    data: Any
    num_samples: int
    """0: this rank has no sample in this step and only takes part."""


Step = tuple[Iterator[MicroBatch], int]
"""Its micro-batches, fetched when asked for, and the number of samples over all ranks."""


class Loader:
    """Micro-batches of one rank from a given step to the end of the stage."""

    def __init__(
        self,
        fetcher: Fetcher,
        order: Order,
        split: StepSplit,
        *,
        first_step: int,
        total_steps: int,
        settings: LoaderSettings | None = None,
    ) -> None:
        self._fetcher, self._order, self._split = fetcher, order, split
        self._next_step, self._total_steps = first_step, total_steps
        self.fetch_s = 0.0
        """How long fetching took so far, summed over workers."""
        self.batches = 0
        """Micro-batches fetched so far."""
        self.settings = settings or LoaderSettings()
        self._workers: _Workers | None = None
        self._start()

    def steps(self) -> Iterator[Step]:
        while self._next_step < self._total_steps:
            share = self._next_share()
            self._next_step += 1
            yield self._fetch(share), share.num_samples

    def state(self) -> None:
        """Nothing for a checkpoint: the order is a pure function of the step."""

    def retune(self, settings: LoaderSettings) -> None:
        """Go on with other workers, at a step boundary."""
        if self._workers is not None:
            self._workers.end()
            self._workers = None
        self.settings = settings
        self._start()

    def stop(self) -> None:
        """End the workers and forget them: leaving must not wait for anybody."""
        if self._workers is not None:
            self._workers.kill()
            self._workers = None

    def _start(self) -> None:
        if self.settings.workers:
            steps = range(self._next_step, self._total_steps)
            self._workers = _Workers(self._fetcher, self._shares_of(steps), self.settings)

    def _next_share(self) -> Share:
        if self._workers is not None:
            return self._workers.shares.popleft()
        return next(self._shares_of(range(self._next_step, self._next_step + 1)))

    def _shares_of(self, steps: range) -> Iterator[Share]:
        is_seeded = self._fetcher.is_seeded
        return (
            share_of_step(self._order, step, self._split, is_seeded=is_seeded) for step in steps
        )

    def _fetch(self, share: Share) -> Iterator[MicroBatch]:
        for request, count in zip(share.requests, share.counts, strict=True):
            yield MicroBatch(self._next_batch(request), count)

    def _next_batch(self, request: Request) -> Any:
        if self._workers is not None:
            batch, seconds = self._workers.next_batch()
            self.fetch_s += seconds
            self.batches += 1
            return batch
        began = time.perf_counter()
        with kept_random_states() if self._fetcher.is_seeded else contextlib.nullcontext():
            batch = self._fetcher(request)
        self.fetch_s += time.perf_counter() - began
        self.batches += 1
        return batch


class _Workers:
    """Worker processes that fetch ahead: torch's DataLoader over our requests."""

    def __init__(self, fetcher: Fetcher, shares: Iterator[Share], settings: LoaderSettings) -> None:
        self.shares: deque[Share] = deque()
        """Requested from the workers, not begun yet."""
        # The requests of a step are made when the first of them is; that is before it is needed,
        # since DataLoader asks for `prefetch` batches per worker before it gives one.
        requests = (request for share in shares for request in self._note(share))
        loader: DataLoader[Any] = DataLoader(
            _Requests(fetcher, is_pinned=settings.pin),
            batch_sampler=_Once(requests),  # type: ignore[arg-type]
            num_workers=settings.workers,
            prefetch_factor=settings.prefetch,
            collate_fn=_as_it_is,
            multiprocessing_context=settings.context,
            pin_memory=settings.pin,
            worker_init_fn=partial(_prepare_worker, parent=os.getpid()),
        )
        with kept_random_states():  # an iterator of a DataLoader draws a seed when it is made
            self._batches: Any = iter(loader)

    def _note(self, share: Share) -> tuple[Request, ...]:
        self.shares.append(share)
        return share.requests

    def next_batch(self) -> tuple[Any, float]:
        """A batch, and how long a worker took for it."""
        try:
            batch, seconds = next(self._batches)
        except (RuntimeError, EOFError, ConnectionError) as error:
            if not _tells_of_a_dead_worker(error):
                raise
            raise RunError(
                f"a loader worker is gone: {error or type(error).__name__}",
                hint="often memory: fewer `loader.workers`, or a smaller `prefetch`",
            ) from error
        if isinstance(batch, TasukiError):
            raise batch
        return unpack(batch), seconds

    def end(self) -> None:
        """Let them finish what they are fetching."""
        self._batches._shutdown_workers()
        for worker in self._batches._workers:
            worker.kill()  # not by pid: of one that has been waited for it may be another's now
            worker.join()

    def kill(self) -> None:
        """By pid, at once. torch's SIGCHLD handler raises in the main thread when a worker dies,
        even inside a save."""
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for worker in self._batches._workers:
            with contextlib.suppress(ProcessLookupError, TypeError):
                os.kill(worker.pid, signal.SIGKILL)


class _Once:
    """Requests as a batch sampler. Stays in this process, also with spawned workers."""

    def __init__(self, requests: Iterator[Request]) -> None:
        self._requests = requests

    def __iter__(self) -> Iterator[Request]:
        return self._requests


class _Requests(Dataset[Any]):
    """Hands a whole request to a worker: DataLoader calls `__getitems__` where there is one."""

    def __init__(self, fetcher: Fetcher, *, is_pinned: bool) -> None:
        self._fetcher, self._is_pinned = fetcher, is_pinned

    def __len__(self) -> int:
        return len(self._fetcher.dataset)

    def __getitems__(self, request: Request) -> tuple[Any, float]:
        began = time.perf_counter()
        try:
            batch = self._fetcher(request)
        except TasukiError as error:
            # A value, since torch would put a traceback into its words and lose the hint.
            if error.__cause__ is not None:
                traceback.print_exception(error.__cause__)
            batch = error
        # Pinning happens in the rank, to tensors.
        return batch if self._is_pinned else pack(batch), time.perf_counter() - began


def _tells_of_a_dead_worker(error: Exception) -> bool:
    if isinstance(error, RuntimeError):
        return "DataLoader worker (pid" in str(error)
    # Tensors come over a socket, which closes a moment before the process counts as dead; what
    # the user's own code raised in a worker begins with "Caught".
    return not str(error).startswith("Caught")


def _as_it_is(batch: Any) -> Any:
    return batch


def _prepare_worker(_: int, *, parent: int) -> None:
    # torch's own watch begins later: a worker whose rank dies before that would live for ever.
    ctypes.CDLL(None).prctl(_SIGNAL_ON_PARENT_DEATH, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)
    # A notice goes to the whole process group: a worker that dies of it would break the last steps
    # and, through torch's SIGCHLD handler, the save.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
