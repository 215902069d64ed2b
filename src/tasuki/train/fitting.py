"""How the steps of a stage are split: as was decided so far, and smaller where memory runs out.

A step that does not fit halves the micro-batch of its bucket, from it on. The effective batch
stays, and so do the samples of the step. The decision is an event on disk before any step uses it,
with the step from which it holds: an attempt that resumes splits every step as it was split before
(promise 9). Where the step could be undone it is simply done again. Where it could not, the attempt
ends, and the next one starts from the last checkpoint with the smaller micro-batch: in the
optimizer's step parameters may be half updated; with several ranks and a micro-batch that had
fitted before, the others wait for a sum that never comes (together.py). A loader of the recipe's
own makes its batches itself: nothing here can split them. What is decided before the first step and
at epoch borders is tuned.py's and borders.py's.
"""

from __future__ import annotations

import contextlib
import gc
import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from tasuki.data.foreign import ForeignLoader
from tasuki.data.loader import Loader
from tasuki.data.order import Order
from tasuki.data.shares import Limit, StepSplit, halve, share_of_step
from tasuki.estimation.factor import is_worth_it
from tasuki.failpoints import failpoint
from tasuki.memory.tuned import is_tuned, read_tuned
from tasuki.runs.events import read_events
from tasuki.train.advice import (
    OutOfMemory,
    Place,
    asked_for,
    explain_lonely,
    explain_memory,
    is_out_of_memory,
    let_go,
)
from tasuki.train.borders import Borders, read_state
from tasuki.train.engine import StepEngine
from tasuki.train.prepare import Setup
from tasuki.train.shortage import find_shortage
from tasuki.train.snapshot import Progress
from tasuki.train.task import Task
from tasuki.train.together import OutOfMemoryElsewhere
from tasuki.train.undo import DoesNotFit, Undo

EVENT = "micro-batch"
_IS_LONELY = "Expected more than 1 value per channel when training"
"""What BatchNorm says of a single sample."""
_IN_OPTIMIZER = " in the optimizer's step"
_PROVEN_AFTER = 20
"""Steps; then DDP may add up gradients while the backward pass still runs."""
_TOLD_WITHIN = timedelta(minutes=30)


class Fitting:
    """How the steps of one stage are split, now."""

    def __init__(self, task: Task, setup: Setup, place: Place) -> None:
        self._task, self._setup, self._place = task, setup, place
        limits: tuple[Limit, ...] = ()
        self.borders = Borders(task, steps_per_epoch=1, is_adaptive=False)
        if isinstance(setup.order, Order):
            limits, self.borders = _agree(task, setup.order)
        self.split: StepSplit = replace(setup.data.split, limits=limits)
        self.has_to_prove = False
        """With several ranks: steps are asked about before they are done (`is_unproven`)."""
        self._fitted: dict[tuple[int, int], int] = {}
        """Steps by bucket and micro-batch."""

    def first_batch(self) -> Any:
        """The first micro-batch, no larger than any is going to be."""
        order = self._setup.order
        assert isinstance(order, Order)
        share = share_of_step(order, 0, self.split.at_last())
        return self._setup.data.fetcher(share.requests[0])

    def fits(self, engine: StepEngine, batch: Any) -> bool:
        """Pass it, on each rank alone, before there is any state; the gradients stay. Where it
        does not fit on some rank, all take a smaller one from now on."""
        error = None
        try:
            engine.try_alone(batch)
        except Exception as caught:
            if not is_out_of_memory(caught):
                raise
            let_go(caught)
            error = caught
        if not engine.is_so_anywhere(error is not None):
            return True
        engine.forget()
        self._shrink(0, DoesNotFit(error, is_undone=True), self.split.at_last())
        return False

    @contextlib.contextmanager
    def restarting(self) -> Iterator[None]:
        """Around passes with the other ranks before there is any state: who runs out of memory
        there cannot vote any more."""
        try:
            yield
        except Exception as error:
            self._shrink(0, error, self.split.at_last())

    def watch(self, engine: StepEngine, *, earlier_peak: int = 0) -> None:
        """From now on steps that do not fit are undone, and peaks count."""
        self.borders.begin(earlier_peak)
        if isinstance(self._setup.order, Order):
            engine.undo = Undo(self._setup.model, self._task.device)
            self.has_to_prove = self._task.ranks.world > 1 and engine.can_try

    def is_unproven(self, step: int, bucket: int) -> bool:
        """With several ranks: has this micro-batch fitted too few times? The same on all ranks."""
        pair = (bucket, self.split.most_at(step, bucket))
        count = self._fitted.get(pair, 0)
        if count >= _PROVEN_AFTER:
            return False
        self._fitted[pair] = count + 1  # one that does not fit is never tried again
        return True

    def is_border(self, step: int) -> bool:
        """So many steps are done, and it is time to look at the peaks."""
        period = self.borders.period
        return period is not None and step % period == 0

    def cross(self, step: int) -> bool:
        """At a border: whether steps are split otherwise from here on."""
        limits = self.borders.decide(step, self.split)
        for limit in limits:
            self.split = self.split.with_limit(limit)
        return bool(limits)

    def shrink(self, progress: Progress, error: Exception) -> None:
        """After a step that failed: returns where it was undone and can be done again; raises
        otherwise, whatever is to be raised."""
        self._shrink(progress.step, error, self.split)

    def _shrink(self, step: int, error: Exception, split: StepSplit) -> None:
        is_undone = isinstance(error, DoesNotFit) and error.is_undone
        cause = error.error if isinstance(error, DoesNotFit) else error
        order = self._setup.order
        if isinstance(order, Order) and split.limits and _IS_LONELY in str(error):
            raise explain_lonely(self._task.stage, step) from error
        if not isinstance(order, Order) or (cause is not None and not is_out_of_memory(cause)):
            raise error
        largest, limit = halve(order, step, split)
        told = asked_for(cause) if cause is not None else ""
        if isinstance(error, DoesNotFit) and not error.is_in_passes:
            if limit is None or self._has_been_in_vain(step):
                raise self._optimizer_too_large(step, error) from cause
            told = f"{_IN_OPTIMIZER}{told}"
        if limit is None:
            found = self._nothing_smaller(step, cause)
            found.is_peer = cause is None or isinstance(cause, OutOfMemoryElsewhere)
            raise found from cause
        self._decide(limit, largest, told, is_undone=is_undone)
        if is_undone:
            self._say(limit, largest, told)
            return
        raise OutOfMemory(
            f"stage `{self._task.stage.name}` ran out of memory at step {step} with a "
            f"micro-batch of {self._amount(largest)}{told}, where the step cannot be undone; the "
            f"next attempt goes on from the last checkpoint with {self._amount(limit.most)}",
            hint=f"nothing to do; `micro_batch: {limit.most}` avoids it"
            if self.split.costs is None
            else f"nothing to do; a `budget` of {limit.most} avoids it",
            is_mistake=False,
        ) from cause

    def _has_been_in_vain(self, step: int) -> bool:
        """A fresh process with smaller micro-batches met the same wall in the optimizer's step."""
        return any(
            event["kind"] == EVENT
            and (event.get("stage"), event.get("from_step")) == (self._task.stage.name, step)
            and _IN_OPTIMIZER in str(event.get("reason"))
            for event in read_events(self._task.run)
        )

    def _optimizer_too_large(self, step: int, error: DoesNotFit) -> OutOfMemory:
        name = self._task.stage.name
        assert error.error is not None
        doing = f"stage `{name}` ran out of memory{_IN_OPTIMIZER} at step {step}"
        return explain_memory(self._task.stage, error.error, doing=doing)

    def rewind(self, loader: Loader | ForeignLoader, step: int) -> None:
        """Let the step come again, split as it is now, when nothing of the last try is left."""
        assert isinstance(loader, Loader)
        loader.rewind(step, self.split)
        gc.collect()  # what the passes made may hang together in circles
        if self._task.device.type == "cuda":
            torch.cuda.empty_cache()

    def _decide(self, limit: Limit, was: int, told: str, *, is_undone: bool) -> None:
        """On disk first. Where ranks have not agreed, whichever met it writes it down."""
        task = self._task
        if task.is_first or not is_undone:
            task.events.add(
                EVENT,
                stage=task.stage.name,
                bucket=limit.bucket,
                from_step=limit.from_step,
                most=limit.most,
                was=was,
                unit="samples" if self.split.costs is None else "cost",
                reason=f"out of memory{told}",
            )
            task.events.sync()
            task.watch.tell("decided")
            failpoint("memory.decided")
        self.split = self.split.with_limit(limit)
        self.borders.note_shrunk(limit.bucket, was)

    def _say(self, limit: Limit, was: int, told: str) -> None:
        order = self._setup.order
        assert isinstance(order, Order)
        size = order.plan.buckets[limit.bucket].size
        where = f" of size {size}" if size and len(order.plan.buckets) > 1 else ""
        self._task.say(
            f"WARNING: step {limit.from_step} ran out of memory with a micro-batch of "
            f"{self._amount(was)}{where}{told}: it is done again with {self._amount(limit.most)} "
            f"at once, and so are all later steps{where}; the effective batch stays "
            f"{order.effective_batch}{_differing(self._setup.model)}"
        )

    def _amount(self, most: int) -> str:
        if self.split.costs is not None:
            return f"cost {most:,}"
        return "1 sample" if most == 1 else f"{most} samples"

    def _nothing_smaller(self, step: int, error: BaseException | None) -> OutOfMemory:
        order, task = self._setup.order, self._task
        assert isinstance(order, Order)
        bucket = order.step(*divmod(step, order.steps_per_epoch)).bucket
        return explain_memory(
            task.stage,
            error or MemoryError("on another rank"),
            doing=f"stage `{task.stage.name}` ran out of memory at step {step}",
            batch=replace(self._setup.batch, micro_batch=1),
            size=order.plan.buckets[bucket].size,
            ranks=task.ranks.world,
            shortage=find_shortage(self._setup.model, self._setup.tracked.optimizer, error),
            # A fresh process after some progress may well get further: memory was in pieces.
            is_mistake=not self._place.has_saved,
        )


def _differing(model: nn.Module) -> str:
    """What hangs on more than single samples."""
    modules = list(model.modules())
    found = []
    if any(isinstance(module, _DropoutNd) and module.p > 0 for module in modules):
        found.append("dropout draws other numbers")
    if any(isinstance(module, _BatchNorm) for module in modules):
        found.append("BatchNorm sees smaller batches")
    return f" ({' and '.join(found)} than without this)" if found else ""


def _agree(task: Task, order: Order) -> tuple[tuple[Limit, ...], Borders]:
    """What was decided so far. Rank 0 looks; the others take its word."""
    key, store, name = "tasuki/limits", task.ranks.store, task.stage.name
    tuned = state = None
    if task.is_first:
        events = read_events(task.run)
        told = list(_told(events, name))
        tuned = read_tuned(events, name) if is_tuned(task.stage) else None
        is_adaptive = tuned is not None and is_worth_it(tuned)
        if tuned is not None:
            state = read_state(events, name, tuned)
        if store is not None:
            store.set(key, json.dumps([told, is_adaptive]))
    else:
        assert store is not None
        store.wait([key], _TOLD_WITHIN)
        told, is_adaptive = json.loads(store.get(key))
    borders = Borders(
        task,
        steps_per_epoch=order.steps_per_epoch,
        is_adaptive=is_adaptive,
        tuned=tuned,
        state=state,
    )
    return tuple(Limit(bucket=b, from_step=s, most=m) for b, s, m in told), borders


def _told(events: Iterable[dict[str, Any]], stage: str) -> Iterable[tuple[int, int, int]]:
    for event in events:
        if event["kind"] == EVENT and event.get("stage") == stage:
            yield int(event["bucket"]), int(event["from_step"]), int(event["most"])
