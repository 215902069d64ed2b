"""Loaders that are not ours: a recipe may return a DataLoader instead of a map-style data set.

Its batches are taken as they come, `accumulation` of them per step. A loader with `state_dict` is
resumed through it; any other is begun again and skipped forward, which costs what reading costs,
and is said. Either way it runs under random numbers of its own, seeded by (seed, stage, epoch):
order and augmentation are then the same after a skip, bit for bit, if it draws from them.

What our own order gives is lost: another number of ranks, the check of samples, a seek in no time.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import multiprocessing
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import Generator, Tensor
from torch.utils.data import DataLoader, IterableDataset

from tasuki.data.children import kill_workers, starting_workers, waiting
from tasuki.data.fetch import (
    RandomStates,
    host_random_states,
    kept_random_states,
    seed_host,
    set_host_random_states,
)
from tasuki.data.loader import MicroBatch, Step
from tasuki.data.order import LengthUnit, sample_seed
from tasuki.data.tempo import LoaderSettings
from tasuki.errors import DataError, UsageError

_UNKNOWN = (
    ". Whether it gives the same batches again is not known: it is no DataLoader of torch, and may "
    "draw from random numbers of its own"
)
_WORKERS = (
    "WARNING: the loader was put back by its state_dict, which holds no random numbers of its "
    "workers: the same samples, but what is drawn for them may differ. A map-style data set would "
    "be exact"
)


def is_loader(data: Any) -> bool:
    """Gives batches one after another, and no sample by number."""
    if isinstance(data, IterableDataset):
        return False  # single samples: who batches them is not said
    return hasattr(data, "__iter__") and not hasattr(data, "__getitem__")


def num_batches(loader: Any) -> int | None:
    """Of a pass; None where it does not say. A DataLoader over a stream has a length by its looks
    only."""
    try:
        return len(loader)
    except (TypeError, NotImplementedError):
        return None


def samples_in(batch: Any) -> int:
    """How many samples a batch has: the length of its first tensor, or what it says itself."""
    if isinstance(batch, Tensor) and batch.ndim:
        return int(batch.shape[0])
    if hasattr(batch, "num_graphs"):
        return int(batch.num_graphs)
    parts = batch.values() if isinstance(batch, Mapping) else batch
    if isinstance(parts, Tensor) or not hasattr(parts, "__iter__") or isinstance(batch, str):
        raise DataError(
            f"a batch of the loader is a {type(batch).__name__}: how many samples it has cannot be "
            "told",
            hint="give batches of tensors whose first dimension counts samples",
        )
    for part in parts:
        with contextlib.suppress(DataError):
            return samples_in(part)
    raise DataError("a batch of the loader holds no tensor", hint="give batches of tensors")


def seed_pass(loader: Any, seed: int) -> None:
    """All random numbers that a pass through a loader is known to draw from; no state of an earlier
    pass is left."""
    seed_host(seed)
    batch_sampler = getattr(loader, "batch_sampler", None)
    owners = (loader, getattr(loader, "sampler", None), batch_sampler)
    for owner in (*owners, getattr(batch_sampler, "sampler", None)):
        generator = getattr(owner, "generator", None)
        if isinstance(generator, Generator):
            generator.manual_seed(seed)
    if getattr(loader, "persistent_workers", False) and hasattr(loader, "_iterator"):
        loader._iterator = None  # workers that stay have random numbers that go on


def iterate(loader: Any) -> _Pass:
    """One pass through it, whose workers hear no notices and whose deaths are heard of in time."""
    return _Pass(loader)


class _Pass:
    def __init__(self, loader: Any) -> None:
        context = getattr(loader, "multiprocessing_context", None) or multiprocessing
        has_workers = bool(getattr(loader, "num_workers", 0))
        self._is_spawned = has_workers and context.get_start_method() != "fork"
        self._has_begun = False
        self._batches: Iterator[Any] = iter(())
        # torchdata, put back to where nothing was left, stops here: then it gives nothing more.
        with starting_workers(is_spawned=self._is_spawned), contextlib.suppress(StopIteration):
            self._batches = iter(loader)

    def __iter__(self) -> _Pass:
        return self

    def __next__(self) -> Any:
        if self._has_begun:
            with waiting():
                return next(self._batches)
        self._has_begun = True
        # Where `__iter__` is a generator, workers start with the first batch.
        with starting_workers(is_spawned=self._is_spawned), waiting():
            return next(self._batches)

    @property
    def iterator(self) -> Any:
        """Whose workers are its processes, if they are torch's."""
        return self._batches


class ForeignOrder:
    """What the training loop must know about a loader's steps; not which samples they have."""

    def __init__(
        self,
        loader: Any,
        *,
        seed: int,
        stage: str,
        accumulation: int,
        length_steps: int | None,
        rank: int = 0,
    ) -> None:
        """`rank`: of a loader that draws for each rank by itself; else all ranks draw the same."""
        self.seed, self.stage, self.accumulation = seed, stage, accumulation
        self.rank = rank
        self.effective_batch = 0
        """Unknown: the loader decides."""
        batches = num_batches(loader)
        if batches == 0:
            raise DataError(
                "the loader has no batches", hint="look at the data and the split it is made of"
            )
        if batches is None and length_steps is None:
            raise UsageError(
                f"the loader of stage `{stage}` does not say how many batches an epoch has",
                hint="write `steps:` instead of `epochs:`, or give the loader a length",
            )
        self.has_length = batches is not None
        self.steps_per_epoch = (
            -(-batches // accumulation) if batches is not None else (length_steps or 1)
        )
        self.plan = _Unplanned(batches, accumulation)

    def total_steps(self, length_unit: LengthUnit, count: int) -> int:
        if length_unit == "samples":
            raise UsageError(
                f"stage `{self.stage}` counts samples, but its loader decides how many a step has",
                hint="write `epochs:` or `steps:`",
            )
        return count if length_unit == "steps" else count * self.steps_per_epoch


class _Unplanned:
    """Stands for a bucket plan in what a checkpoint compares."""

    def __init__(self, batches: int | None, accumulation: int) -> None:
        self._facts = f"loader {batches} {accumulation}"

    def fingerprint(self) -> str:
        return hashlib.blake2b(self._facts.encode(), digest_size=16).hexdigest()


class ForeignLoader:
    """The batches of somebody else's loader as steps, from where a checkpoint left it."""

    fetch_s = 0.0
    batches = 0
    bucket = 0

    def __init__(
        self,
        loader: Any,
        order: ForeignOrder,
        *,
        first_step: int,
        total_steps: int,
        state: Mapping[str, Any] | None,
        say: Callable[[str], None],
        count: Callable[[Any], int] = samples_in,
    ) -> None:
        self._loader, self._order, self._count = loader, order, count
        self._next_step, self._total_steps = first_step, total_steps
        self._say = say
        self.settings = LoaderSettings()
        self.wait_s = 0.0
        self._has_state = hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict")
        self._random: RandomStates | None = None
        """The loader's own, between its batches."""
        self._epoch = 0
        """How often it was begun, where it does not say how long an epoch is."""
        self._batches: _Pass | None = None
        self._is_fresh = True
        if first_step:
            self._resume(state or {})

    def steps(self) -> Iterator[Step]:
        while self._next_step < self._total_steps:
            began = time.monotonic()
            group = self._take()
            self.wait_s += time.monotonic() - began
            self._next_step += 1
            counts = [self._count(batch) for batch in group]
            micro = (MicroBatch(b, count) for b, count in zip(group, counts, strict=True))
            yield micro, sum(counts)

    def retune(self, settings: LoaderSettings) -> None:
        """Its workers are its own."""

    def stop(self) -> None:
        """End its workers, if they are torch's: leaving must not wait for anybody."""
        if self._batches is not None:
            kill_workers(self._batches.iterator)
        if threading.current_thread() is threading.main_thread():
            self._batches = None  # torch forgets its workers when nobody holds them any more

    def has_seen_every_bucket(self) -> bool:
        """It has none that anybody knows of."""
        return True

    def _take(self) -> list[Any]:
        """The batches of one step; the last step of an epoch may have fewer."""
        group: list[Any] = []
        with self._own_random():
            while len(group) < self._order.accumulation:
                if self._batches is None:
                    self._begin_epoch()
                batch = next(self._batches, None)  # type: ignore[arg-type]
                if batch is None:
                    self._end_epoch(is_empty=not group)
                    break
                group.append(batch)
                self._is_fresh = False
            if group and self._order.has_length and self._is_last_of_epoch():
                self._refuse_more()
        return group or self._take()

    def _is_last_of_epoch(self) -> bool:
        return (self._next_step + 1) % self._order.steps_per_epoch == 0

    def _begin_epoch(self) -> None:
        order = self._order
        if order.has_length:
            self._epoch = self._next_step // order.steps_per_epoch
        seed_pass(self._loader, self._seed())
        set_epoch = getattr(getattr(self._loader, "sampler", None), "set_epoch", None)
        if set_epoch is not None:
            set_epoch(self._epoch)
        self._batches = iterate(self._loader)
        self._is_fresh = True

    def _seed(self) -> int:
        order = self._order
        return sample_seed(order.seed, f"{order.stage}#loader", self._epoch, order.rank)

    def _end_epoch(self, *, is_empty: bool) -> None:
        """The loader has no more batches. Where it says how many it has, that is too early."""
        if self._order.has_length and (is_empty or not self._is_last_of_epoch()):
            raise DataError(
                f"the loader of stage `{self._order.stage}` gave fewer batches than its length",
                hint="let its `__len__` tell the truth, or leave it out and say how many steps",
            )
        if is_empty and self._is_fresh:
            raise DataError(
                "the loader has no batches", hint="look at the data and the split it is made of"
            )
        self._batches = None
        self._epoch += 1

    def _refuse_more(self) -> None:
        if self._batches is not None and next(self._batches, None) is not None:
            raise DataError(
                f"the loader of stage `{self._order.stage}` has more batches than its length",
                hint="let its `__len__` tell the truth, or leave it out and say how many steps",
            )
        self._batches = None

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps, asked between two steps."""
        if self._batches is None or not self._has_state:
            return {"epoch": self._epoch, "random": None, "loader": None}
        return {
            "epoch": self._epoch,
            "random": self._random,
            # A copy: the next step is fetched before this one may be saved.
            "loader": copy.deepcopy(self._loader.state_dict()),
        }

    def _resume(self, state: Mapping[str, Any]) -> None:
        if self._order.has_length and self._next_step % self._order.steps_per_epoch == 0:
            return
        if self._has_state and state.get("loader") is not None:
            self._epoch = state["epoch"]
            with kept_random_states():
                seed_pass(self._loader, self._seed())  # as the pass began: it may be gone through
                self._loader.load_state_dict(state["loader"])
                self._batches = iterate(self._loader)
            self._random = state["random"]
            if getattr(self._loader, "num_workers", 0):
                self._say(_WORKERS)
        elif self._has_state and state:
            self._epoch = state["epoch"]  # it stood between two passes
        else:
            self._skip()

    def _skip(self) -> None:
        """Read again what was read before: this epoch, or everything without a known length."""
        began = time.monotonic()
        until, batches = self._next_step, 0
        per_epoch = self._order.steps_per_epoch
        first = until // per_epoch * per_epoch if self._order.has_length else 0
        for step in range(first, until):
            self._next_step = step
            batches += len(self._take())
        self._next_step = until
        self._say(
            f"WARNING: the loader has no state_dict: {batches:,} batches were read again to get "
            f"back to step {until:,}, {time.monotonic() - began:.1f} s. A map-style data set would "
            "cost nothing, a loader with state_dict (torchdata's StatefulDataLoader) little"
            + ("" if isinstance(self._loader, DataLoader) else _UNKNOWN)
        )

    @contextlib.contextmanager
    def _own_random(self) -> Iterator[None]:
        """The loader's random numbers go on where they stood; the training's stay as they are."""
        with kept_random_states():
            if self._random is not None:
                set_host_random_states(self._random)
            yield
            self._random = host_random_states()
