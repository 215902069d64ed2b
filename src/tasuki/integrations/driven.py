"""A loop that a framework drives: its batches, its step boundaries, its end.

The framework asks for a batch where nothing is half done: that is the step boundary, and the one
place at which state is captured and put back. So an adapter only says what is held, where the
framework stands in the data, and when a step begins; what happens to it all is Loop's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tasuki.data.foreign import num_batches
from tasuki.errors import UsageError
from tasuki.integrations.asked import is_kernel
from tasuki.integrations.batches import Batches, Feed, Wanted, make_feed
from tasuki.integrations.loop import Course, Holds
from tasuki.integrations.open import open_loop
from tasuki.integrations.run import show_errors_briefly
from tasuki.loop.settled import settle_buckets
from tasuki.loop.state import State, capture_random, restore_random

_UNBOUNDED_EPOCHS = 1_000_000
"""Frameworks stop by themselves; the order of samples has no end."""
_ONE_LOADER = (
    "give it one DataLoader with a length: several can be joined to one data set, and a stream "
    "can be wrapped in a loader that has `__len__`"
)


def begin_talking() -> None:
    """Before anything is refused: in words, without a traceback."""
    if not is_kernel():
        show_errors_briefly()


class Driven:
    """One training of a framework as an attempt of a run."""

    def __init__(self, run: str | Path | None, options: Mapping[str, Any], *, another: str) -> None:
        """`another`: how people open a further run in this framework."""
        self.loop, self._watch = open_loop(run, **options, another=another)
        self._feed: Feed | None = None
        self._batches: Batches | None = None
        self._next = -1
        """The batch that `_batches` gives next, counted over epochs."""
        self._is_begun = False
        self._samples, self._waited_s = 0, 0.0
        self._indices: list[int] = []
        self._accumulation, self._is_whole = 1, True
        self._num_batches = 0
        """Of the step that is being done."""
        self.place: Any = None
        """Of a loader that keeps its own place, as the checkpoint has it."""

    def find(self) -> State | None:
        """What the run goes on from, before anything is put back; None: a first start."""
        return self.loop.find()

    @property
    def is_exact(self) -> bool:
        return self.loop.worker.stage.exact

    @property
    def is_begun(self) -> bool:
        return self._is_begun

    # -- the data -------------------------------------------------------------------------------

    def feed_from(self, loader: Any, *, accumulation: int = 1, is_whole: bool = True) -> int:
        """Take over this loader, of which so many batches make a step; the number of batches of an
        epoch. Not `is_whole`: the framework leaves epochs early, and nobody can tell which samples
        each of them should have had."""
        self._accumulation, self._is_whole = accumulation, is_whole
        worker = self.loop.worker
        if not hasattr(loader, "__iter__") or num_batches(loader) is None:
            raise UsageError(
                f"the training's data are a {type(loader).__name__}, in which no position can be "
                "found again",
                hint=_ONE_LOADER,
            )
        feed = make_feed(
            loader,
            Wanted(
                epochs=_UNBOUNDED_EPOCHS,
                steps=None,
                seed=worker.stage.seed,
                stage=worker.stage.name,
                rank=worker.ranks.rank,
                world=worker.ranks.world,
                say=worker.say,
                accumulation=accumulation,
            ),
        )
        if self._feed is None:
            for line in feed.told:
                worker.say(line)
            if feed.uneven:
                worker.say(
                    f"WARNING: {feed.uneven}, and the framework averages ranks as if it did: "
                    "choose a batch size that divides the samples, or leave some out, for means "
                    "over samples"
                )
        self._stop_batches()
        self._feed = feed
        return feed.steps_per_epoch

    def batch(self, epoch: int, number: int) -> Any:
        """A batch, wherever the framework stands: usually the next one."""
        feed = self._feed
        assert feed is not None
        wanted = epoch * feed.steps_per_epoch + number
        if self._batches is None or wanted != self._next:
            self._stop_batches()
            self._batches = Batches(feed.open(wanted, self.place))
            self.loop.before_leaving = self._batches.stop
            self.place = None
        batches = self._batches
        batch = batches.next()
        self._next = wanted + 1
        self._samples += batches.samples
        self._waited_s += batches.waited_s
        self._indices += batches.indices
        self._num_batches += 1
        return batch

    def own_place(self) -> Any:
        """Of a loader that keeps its own place; None: the step says it all."""
        return self._batches.state() if self._batches is not None else None

    def _stop_batches(self) -> None:
        if self._batches is not None:
            self._batches.stop()
            self._batches = None

    # -- the steps ------------------------------------------------------------------------------

    def settle(self, model: nn.Module | None) -> None:
        """Before anything is put back; on all ranks."""
        if isinstance(model, DistributedDataParallel):
            settle_buckets(model)

    def at_step(self, holds: Holds, course: Course) -> None:
        """Between two steps, before a batch of the next one: what the first call of an attempt puts
        back is the same as what the last one before it captured."""
        if not self._is_begun:
            self._begin(holds, course)
        else:
            self._account()
        self.loop.boundary()

    def _begin(self, holds: Holds, course: Course) -> None:
        assert self._feed is not None
        facts = {**self._feed.facts, **course.facts}
        order = self._feed.order if self._is_whole else None
        if order is not None and self._accumulation > 1:  # the feed's is one of batches
            order = {**order, "gathered": self._accumulation}
        self._is_begun = True
        self.loop.begin(
            holds,
            Course(
                total_steps=course.total_steps,
                steps_per_epoch=course.steps_per_epoch,
                facts=facts,
                knows_samples=order is not None,
                order=order,
            ),
        )

    def _account(self) -> None:
        """The step whose batches were given out is done."""
        if not self._num_batches:
            return
        samples, indices, waited_s = self._samples, self._indices, self._waited_s
        self._samples, self._indices, self._waited_s, self._num_batches = 0, [], 0.0, 0
        self.loop.end_step(samples=samples, indices=indices, waited_s=waited_s)

    @contextlib.contextmanager
    def validating(self) -> Iterator[None]:
        """A validation draws what it likes: the training's random numbers stay as they are. A
        loader whose workers live on draws only when it is first begun, so a resumed process would
        draw at other times than one that was never interrupted. Its time is no step's time."""
        kept, clock = capture_random(), self.loop.worker.clock
        began = clock.monotonic()
        try:
            with self.loop.worker.stopwatch.part("validate"):
                yield
        finally:
            restore_random(kept)
            self.loop.leave_out(clock.monotonic() - began)

    # -- the end --------------------------------------------------------------------------------

    def end(self, holds: Holds, course: Course) -> None:
        """All steps are done; the last checkpoint is durable when this returns."""
        if not self._is_begun:
            self._begin(holds, course)
        self._account()
        self._stop_batches()
        self.loop.end()

    def complete(self, metrics: Mapping[str, Any] | None = None) -> None:
        self.loop.complete(metrics)
        self._watch.end()

    def fail(self, error: BaseException) -> None:
        """The framework's training ends with this; HandedOver has said it all."""
        self.loop.fail(error)
        self._stop_batches()
        self._watch.end()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ways:
    """How a framework's trainer is captured and put back (hf_state.py, lightning_state.py)."""

    capture: Callable[[Any], State]
    restore: Callable[[Any, Mapping[str, Any]], None]
    own: str
    """What each rank has for itself, beside its place in the data: how that is called."""
    capture_own: Callable[[Any], Any]
    restore_own: Callable[[Any, Any], None]
    model: Callable[[Any], nn.Module]


class TrainerHolds:
    """A framework's trainer as a Loop wants to hold it."""

    course: Course

    def __init__(self, trainer: Any, driven: Driven, ways: Ways) -> None:
        self._trainer, self._driven, self._ways = trainer, driven, ways
        self.is_at_end = False

    def capture(self) -> State:
        return {**self._ways.capture(self._trainer), "is_at_end": self.is_at_end}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._ways.restore(self._trainer, state)

    def capture_rank(self) -> Any:
        own = self._ways.capture_own(self._trainer)
        return {self._ways.own: own, "place": self._driven.own_place()}

    def restore_rank(self, state: Any) -> None:
        if state is not None:
            self._ways.restore_own(self._trainer, state[self._ways.own])
            self._driven.place = state["place"]

    def weights(self) -> Mapping[str, Any]:
        weights: Mapping[str, Any] = self._ways.model(self._trainer).state_dict()
        return weights

    def must_be_finite(self, name: str) -> bool:
        kind, _, parameter = name.partition(".")
        found = self._ways.model(self._trainer).named_parameters()
        return kind == "model" and parameter in {n for n, p in found if p.requires_grad}


def forget_workers(loader: Any) -> None:
    """Before a validation: workers that stay (`persistent_workers`) have random numbers that go on
    from one to the next, which a resumed process has not been through."""
    if getattr(loader, "persistent_workers", False) and hasattr(loader, "_iterator"):
        loader._iterator = None
