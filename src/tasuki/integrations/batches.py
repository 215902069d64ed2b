"""From what a script iterates over to steps that can be resumed exactly.

A torch DataLoader over a map-style data set gets our order and our fetching: its data set, collate
and batch size, but each sample under random numbers of (seed, stage, epoch, position), wherever and
by however many workers it is fetched. A loader with `state_dict` keeps its own place; any other is
begun again and skipped forward (data/foreign.py). A number is just counted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.utils.data import (
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    default_collate,
    get_worker_info,
)
from torch.utils.data.distributed import DistributedSampler

from tasuki.data.fetch import Fetcher
from tasuki.data.foreign import ForeignLoader, ForeignOrder, num_batches, samples_in
from tasuki.data.loader import Loader, MicroBatch, Step
from tasuki.data.plain import PlainOrder
from tasuki.data.shares import StepSplit
from tasuki.data.tempo import LoaderSettings
from tasuki.errors import DataError, UsageError

_SHARE_OUT = (
    "WARNING: every rank goes through this loader under the same random numbers: let each take a "
    "part of its own, by its rank, or all get the same batches"
)
_LENGTH_HINT = "write run.steps(loader, epochs=10) or run.steps(loader, steps=5000)"


class Source(Protocol):
    """Batches from some step on."""

    wait_s: float

    def steps(self) -> Iterator[Step]: ...
    def stop(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Feed:
    """What a loop iterates over, understood."""

    total_steps: int
    steps_per_epoch: int
    facts: Mapping[str, Any]
    """What must not change between two starts."""
    order: Mapping[str, Any] | None
    """Of samples, for `tasuki verify samples`; None: it is not known which come when."""
    open: Callable[[int, Mapping[str, Any] | None], Source]
    """From a step on; with what `state` gave, or None."""
    told: tuple[str, ...] = ()
    """What people should know about it."""
    shared_by: int = 1
    """So many ranks have the samples of a step, shared out by tasuki."""
    uneven: str = ""
    """What is to be said where their shares are not always alike."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """How long, and for whom."""

    epochs: int | None
    steps: int | None
    seed: int
    stage: str
    rank: int
    world: int
    say: Callable[[str], None]
    accumulation: int = 1

    def total(self, steps_per_epoch: int) -> int:
        epochs = self.epochs if self.epochs is not None else 1
        return self.steps if self.steps is not None else epochs * steps_per_epoch


def make_feed(loader: Any, wanted: Wanted) -> Feed:
    for name in ("epochs", "steps"):
        count = getattr(wanted, name)
        if count is not None and (not isinstance(count, int) or count < 1):
            raise UsageError(f"`{name}={count}` is no number of at least 1", hint=_LENGTH_HINT)
    if wanted.epochs is not None and wanted.steps is not None:
        raise UsageError("a loop has either `epochs` or `steps`", hint=_LENGTH_HINT)
    if isinstance(loader, int) and not isinstance(loader, bool):
        return _counted(loader, wanted)
    if not hasattr(loader, "__iter__"):
        raise UsageError(
            f"run.steps cannot go through a {type(loader).__name__}",
            hint="give it a DataLoader, another iterable of batches, or a number of steps",
        )
    if is_ours(loader, world=wanted.world):
        return _ours(loader, wanted)
    return _foreign(loader, wanted)


def is_ours(loader: Any, *, world: int) -> bool:
    """A DataLoader whose order and fetching we can take over without changing what it means."""
    if type(loader) is not DataLoader or isinstance(loader.dataset, IterableDataset):
        return False
    if loader.batch_size is None or hasattr(loader, "state_dict"):
        return False
    sampler = loader.sampler
    if type(sampler) not in (RandomSampler, SequentialSampler, DistributedSampler):
        return False  # with one of one's own a data set needs no length
    samples = len(loader.dataset)  # type: ignore[arg-type]
    # They draw from range(len(source)): one over something shorter means a part of the data set.
    source: Any = getattr(sampler, "data_source", getattr(sampler, "dataset", ()))
    if len(source) != samples:
        return False
    if type(sampler) is RandomSampler:
        return not sampler.replacement and sampler.num_samples == samples
    return type(sampler) is SequentialSampler or getattr(sampler, "num_replicas", 0) == world


def _ours(loader: Any, wanted: Wanted) -> Feed:
    sampler, samples = loader.sampler, len(loader.dataset)
    is_shuffled = not isinstance(sampler, SequentialSampler) and getattr(sampler, "shuffle", True)
    effective = loader.batch_size * wanted.world
    plain = PlainOrder(
        samples=samples,
        effective_batch=effective,
        shuffle=is_shuffled,
        seed=wanted.seed,
        stage=wanted.stage,
    )
    order = plain.build()
    total = wanted.total(order.steps_per_epoch)
    split = StepSplit(rank=wanted.rank, world=wanted.world, micro_batch=loader.batch_size)
    collate = None if loader.collate_fn is default_collate else loader.collate_fn
    fetcher = Fetcher(_prepared(loader), collate)
    return Feed(
        total_steps=total,
        steps_per_epoch=order.steps_per_epoch,
        facts=plain.as_json(),
        order=plain.as_json(),
        open=lambda first, _: Loader(
            fetcher,
            order,
            split,
            first_step=first,
            total_steps=total,
            settings=_settings(loader),
        ),
        told=_told(loader, plain),
        shared_by=wanted.world,
        uneven=_uneven(samples % effective, wanted.world),
    )


def _settings(loader: Any) -> LoaderSettings:
    context = getattr(loader, "multiprocessing_context", None)
    return LoaderSettings(
        workers=loader.num_workers,
        prefetch=loader.prefetch_factor or 2,
        context=context.get_start_method() if context is not None else "fork",
        pin=bool(loader.pin_memory) and torch.cuda.is_available(),
    )


def _told(loader: Any, plain: PlainOrder) -> tuple[str, ...]:
    samples, effective = plain.samples, plain.effective_batch
    how = "shuffled by (seed, epoch)" if plain.shuffle else "in sequence"
    words = f"The {samples:,} samples of the loader come in tasuki's order, {how}"
    told = [f"{words}: a resume takes up any step at once, however many workers there are"]
    if loader.drop_last and samples % effective:
        told.append(
            f"WARNING: `drop_last` has no effect: the {samples % effective} samples that do not "
            f"fill a batch come as a smaller one, so that an epoch has {-(-samples // effective)} "
            "steps (a scheduler must count with them)"
        )
    return tuple(told)


def _uneven(rest: int, world: int) -> str:
    """`rest`: the samples of an epoch that fill no batch."""
    if rest % world == 0:
        return ""
    least = "some ranks have fewer samples" if rest > world else "some ranks only borrow samples"
    return (
        f"a smaller batch of {rest} samples does not share out evenly among {world} ranks ({least})"
    )


class _Prepared:
    """A data set whose `worker_init_fn` is called before a worker's first sample."""

    def __init__(self, dataset: Any, prepare: Callable[[int], None]) -> None:
        self._dataset, self._prepare = dataset, prepare
        self._is_prepared = False

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> Any:
        info = get_worker_info()
        if not self._is_prepared and info is not None:
            self._is_prepared = True
            vars(info)["dataset"] = self._dataset  # what such functions look at
            self._prepare(info.id)
        return self._dataset[index]


def _prepared(loader: Any) -> Any:
    if loader.worker_init_fn is None:
        return loader.dataset
    return _Prepared(loader.dataset, loader.worker_init_fn)


def _foreign(loader: Any, wanted: Wanted) -> Feed:
    if wanted.epochs is None and wanted.steps is None and num_batches(loader) is None:
        raise UsageError(
            f"the loader is a {type(loader).__name__} that does not say how many batches it has",
            hint="write run.steps(loader, steps=5000)",
        )
    draws, shares = _draws_apart(loader), _is_shared_out(loader)
    is_known = isinstance(loader, DataLoader) and not isinstance(loader.dataset, IterableDataset)
    if wanted.world > 1 and is_known and not (draws or shares):
        raise DataError(
            f"all {wanted.world} ranks would get the same batches: a "
            f"{type(_source(loader)).__name__} shares no samples out",
            hint="leave the sampler out, and tasuki shares them out; or give a sampler with `rank` "
            "and `num_replicas`, such as DistributedSampler",
        )
    order = ForeignOrder(
        loader,
        seed=wanted.seed,
        stage=wanted.stage,
        accumulation=1,
        length_steps=wanted.steps,
        rank=wanted.rank if draws else 0,
    )
    total = wanted.total(order.steps_per_epoch)
    has_state = hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict")
    how = (
        "the loader keeps its own place (state_dict): which samples a step has is not known, so "
        "that `tasuki verify samples` cannot check them"
        if has_state
        else "the loader's batches are taken as they come: a resume reads again what was read in "
        "that epoch, and `tasuki verify samples` cannot check them"
    )
    told = (how,) if wanted.world == 1 or draws or shares else (how, _SHARE_OUT)
    return Feed(
        total_steps=total,
        steps_per_epoch=order.steps_per_epoch,
        facts={"batches": num_batches(loader)},
        order=None,
        open=lambda first, state: ForeignLoader(
            loader,
            order,
            first_step=first,
            total_steps=total,
            state=state,
            say=wanted.say,
            count=_samples_in,
        ),
        told=told,
    )


def _source(loader: Any) -> Any:
    """What decides about the order: a sampler, or one of batches that hides its own."""
    batch_sampler = getattr(loader, "batch_sampler", None)
    if batch_sampler is None:
        return getattr(loader, "sampler", None)
    return getattr(batch_sampler, "sampler", batch_sampler)


def _draws_apart(loader: Any) -> bool:
    """Samples that are drawn with replacement need not be shared out: each rank draws its own."""
    return getattr(_source(loader), "replacement", None) is True and not _is_shared_out(loader)


def _is_shared_out(loader: Any) -> bool:
    """Does each rank have a part of its own? Then all must draw the same order: torch's and
    Lightning's samplers say `num_replicas`, accelerate's shards `num_processes`."""
    parts = [getattr(loader, name, None) for name in ("batch_sampler", "sampler", "dataset")]
    parts += [loader, _source(loader)]
    return any(hasattr(part, name) for part in parts for name in ("num_replicas", "num_processes"))


def _samples_in(batch: Any) -> int:
    """0 where nobody can tell: a script may iterate over whatever it likes."""
    try:
        return samples_in(batch)
    except DataError:
        return 0


class _Counter:
    """Steps without data."""

    wait_s = 0.0

    def __init__(self, first: int, total: int) -> None:
        self._steps = range(first, total)

    def steps(self) -> Iterator[Step]:
        for step in self._steps:
            yield iter((MicroBatch(step, 0),)), 0

    def stop(self) -> None:
        """There is nothing to stop."""


def _counted(count: int, wanted: Wanted) -> Feed:
    if count < 1 or wanted.steps is not None or wanted.epochs not in (None, 1):
        raise UsageError(
            f"run.steps({count}) counts steps, at least one", hint="write run.steps(5000)"
        )
    return Feed(
        total_steps=count,
        steps_per_epoch=count,
        facts={},
        order=None,
        open=lambda first, _: _Counter(first, count),
    )


class Batches:
    """One batch per step, with how long it was waited for and which samples it has."""

    def __init__(self, source: Source, *, shared_by: int = 1) -> None:
        """`shared_by`: ranks that share out the samples of each step."""
        self._source, self._shared_by = source, shared_by
        self._steps = source.steps()
        self.samples = 0
        """Of the last batch, over all ranks."""
        self.indices: list[int] = []
        """Of the last batch, on this rank; none of those that it only borrows."""
        self.weight = 1.0
        """Of the last batch's mean in the mean over ranks, so that all samples count alike."""
        self.waited_s = 0.0
        self._last: Mapping[str, Any] | None = None

    def next(self) -> Any:
        began = time.perf_counter()
        try:
            batches, self.samples = next(self._steps)
            batch = next(iter(batches))
        except StopIteration:
            raise DataError(
                "the loader gave fewer batches than its length", hint="let `__len__` tell the truth"
            ) from None
        self.indices = list(batch.indices)
        if self._shared_by > 1:
            self.weight = batch.num_samples * self._shared_by / self.samples
        self.waited_s = time.perf_counter() - began
        return batch.data

    def state(self) -> Mapping[str, Any] | None:
        """Of a loader that is not ours, between two steps."""
        if self._last is not None or not isinstance(self._source, ForeignLoader):
            return self._last
        return self._source.state()

    def stop(self) -> None:
        self._last = self.state()  # a loader that was stopped does not know where it stood
        self._source.stop()
