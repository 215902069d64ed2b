"""The micro-batches of a rank, step after step, fetched here or by worker processes.

How they are fetched changes nothing about them (fetch.py), so the number of workers may change at
any step boundary: `retune`. tempo.py decides; this file only does.
"""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time
import traceback
from array import array
from collections import deque
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from torch.utils.data import DataLoader, Dataset

from tasuki.data.children import kill_workers, starting_workers, waiting
from tasuki.data.drawn import ThriftyFetcher
from tasuki.data.fetch import Fetcher, Request, kept_random_states
from tasuki.data.handing import pack, unpack
from tasuki.data.order import Order, sample_seed
from tasuki.data.shares import Share, StepSplit, share_of_step
from tasuki.data.tempo import LoaderSettings
from tasuki.errors import RunError, TasukiError
from tasuki.signals import NOTICES

_LOOKS = 8
_SIGNAL_ON_PARENT_DEATH = 1
"""Linux's PR_SET_PDEATHSIG."""


class MicroBatch(NamedTuple):
    """What a rank puts through the model at once."""

    data: Any
    num_samples: int
    """0: this rank has no sample in this step and only takes part."""
    indices: Sequence[int] = ()
    """Of its samples in the data set, as whoever fetched them tells; what is borrowed and counts 0
    is left out, and nobody knows those of a loader that the recipe brings."""


_STEPS_AHEAD = 32
_SAMPLES_AHEAD = 4096
Step = tuple[Iterator[MicroBatch], int]
"""Its micro-batches, fetched when asked for, and the number of samples over all ranks."""


class Loader:
    """Micro-batches of one rank from a given step to the end of the stage. A checkpoint keeps
    nothing of it: the order is a pure function of the step."""

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
        self._fetcher = ThriftyFetcher(fetcher, _looks(order) if fetcher.is_seeded else ())
        self._is_seeded = fetcher.is_seeded
        self._order, self._split = order, split
        self._next_step, self._total_steps = first_step, total_steps
        self.fetch_s = 0.0
        """How long fetching took so far, summed over workers."""
        self.wait_s = 0.0
        """How long whoever trains has waited for it so far."""
        self.batches = 0
        """Micro-batches fetched so far."""
        self._ahead: deque[Share] = deque()
        """Shares of the next steps."""
        self._num_ahead = max(1, min(_STEPS_AHEAD, _SAMPLES_AHEAD // order.effective_batch))
        self.bucket = 0
        """Of the step that was given out last."""
        self._seen: set[int] = set()
        """Buckets of which a step was given out."""
        self.settings = settings or LoaderSettings()
        self._workers: _Workers | None = None
        self._start()

    def steps(self) -> Iterator[Step]:
        while self._next_step < self._total_steps:
            share = self._next_share()
            self._next_step += 1
            self.bucket = share.bucket
            self._seen.add(share.bucket)
            yield self._fetch(share), share.num_samples

    def has_seen_every_bucket(self) -> bool:
        """Before that nobody knows how long a step may take."""
        return len(self._seen) == len(self._order.plan.buckets)

    def retune(self, settings: LoaderSettings) -> None:
        """Go on with other workers, at a step boundary."""
        if self._workers is not None:
            self._workers.end()
            self._workers = None
        self.settings = settings
        self._ahead.clear()
        self._start()

    def rewind(self, step: int, split: StepSplit) -> None:
        """Give out this step anew, and all after it, in other micro-batches."""
        self._split, self._next_step = split, step
        self.retune(self.settings)

    def stop(self) -> None:
        """End the workers and forget them: leaving must not wait for anybody."""
        if self._workers is not None:
            self._workers.kill()
            if threading.current_thread() is threading.main_thread():
                self._workers = None  # else the loop may be about to ask them

    def _start(self) -> None:
        if self.settings.workers:
            shares = map(self._share_of, range(self._next_step, self._total_steps))
            self._workers = _Workers(self._fetcher, shares, self.settings)

    def _next_share(self) -> Share:
        if self._workers is not None:
            return self._workers.shares.popleft()
        if not self._ahead:
            # Some steps at once: code that runs again and again is quicker than code in between.
            began = time.perf_counter()
            stop = min(self._next_step + self._num_ahead, self._total_steps)
            self._ahead.extend(map(self._share_of, range(self._next_step, stop)))
            self.wait_s += time.perf_counter() - began
        return self._ahead.popleft()

    def _share_of(self, step: int) -> Share:
        return share_of_step(self._order, step, self._split, is_seeded=self._is_seeded)

    def _fetch(self, share: Share) -> Iterator[MicroBatch]:
        for request, count in zip(share.requests, share.counts, strict=True):
            began = time.perf_counter()
            if self._workers is None:
                batch = self._fetcher(request)
                seconds = waited = time.perf_counter() - began
            else:
                batch, seconds = self._workers.next_batch(request)
                waited = time.perf_counter() - began
            self.wait_s += waited
            self.fetch_s += seconds
            self.batches += 1
            yield MicroBatch(batch, count, request.indices if count else ())


def _looks(order: Order) -> tuple[Request, ...]:
    """Some samples of the first epoch, each alone, wherever this attempt stands."""
    last = order.steps_per_epoch - 1
    # The last one second: data that take long are looked at twice only.
    numbers = dict.fromkeys([0, last, *(last * n // _LOOKS for n in range(1, _LOOKS))])
    steps = [order.step(0, number) for number in numbers]
    return tuple(
        Request(
            step.indices[:1].tolist(),
            [sample_seed(order.seed, order.stage, 0, step.first_position)],
        )
        for step in steps
    )


class _Workers:
    """Worker processes that fetch ahead: torch's DataLoader over our requests."""

    def __init__(
        self, fetcher: ThriftyFetcher, shares: Iterator[Share], settings: LoaderSettings
    ) -> None:
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
        is_spawned = settings.context != "fork"
        # An iterator of a DataLoader draws a seed when it is made.
        with kept_random_states(), starting_workers(is_spawned=is_spawned):
            self._batches: Any = iter(loader)

    def _note(self, share: Share) -> tuple[Request, ...]:
        self.shares.append(share)
        return share.requests

    def next_batch(self, request: Request) -> tuple[Any, float]:
        """The batch of this request, and how long a worker took for it."""
        try:
            with waiting():
                batch, seconds, fetched = next(self._batches)
        except (RuntimeError, EOFError, ConnectionError) as error:
            if not _tells_of_a_dead_worker(error):
                raise
            raise RunError(
                f"a loader worker is gone: {error or type(error).__name__}",
                hint="often memory: fewer `loader.workers`, or a smaller `prefetch`",
            ) from error
        if isinstance(batch, TasukiError):
            raise batch
        if fetched != _spelled(request):
            raise RunError(
                "a loader worker handed over other samples than those that were asked for",
                hint="nothing was learnt from them: the next attempt takes the right ones",
            )
        return unpack(batch), seconds

    def end(self) -> None:
        """Let them finish what they are fetching."""
        self._batches._shutdown_workers()
        for worker in self._batches._workers:
            worker.kill()  # not by pid: of one that has been waited for it may be another's now
            worker.join()

    def kill(self) -> None:
        kill_workers(self._batches)


class _Once:
    """Requests as a batch sampler. Stays in this process, also with spawned workers."""

    def __init__(self, requests: Iterator[Request]) -> None:
        self._requests = requests

    def __iter__(self) -> Iterator[Request]:
        return self._requests


class _Requests(Dataset[Any]):
    """Hands a whole request to a worker: DataLoader calls `__getitems__` where there is one."""

    def __init__(self, fetcher: ThriftyFetcher, *, is_pinned: bool) -> None:
        self._fetcher, self._is_pinned = fetcher, is_pinned

    def __len__(self) -> int:
        return len(self._fetcher.fetcher.dataset)

    def __getitems__(self, request: Request) -> tuple[Any, float, bytes]:
        began = time.perf_counter()
        try:
            batch = self._fetcher(request)
        except TasukiError as error:
            # A value, since torch would put a traceback into its words and lose the hint.
            if error.__cause__ is not None:
                traceback.print_exception(error.__cause__)
            batch = error
        # Pinning happens in the rank, to tensors.
        packed = batch if self._is_pinned else pack(batch)
        return packed, time.perf_counter() - began, _spelled(request)


def _spelled(request: Request) -> bytes:
    """Which samples, as a worker tells with the batch. Bytes, as torch's pinning would go through
    a list number by number."""
    return array("q", request.indices).tobytes()


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
    for number in NOTICES:  # see children.py; it began deaf, and whatever unblocks them, stays so
        signal.signal(number, signal.SIG_IGN)
