"""What every step of a drill came from and led to, as digests; commands/drill_diagnosis.py reads
it.

One file per attempt and rank. Its first line is the state that was restored; then a line per step:
`hidden` is what no checkpoint holds (hidden.py) and `before` the random states, both when the step
began; `after` has the batches, the loss, the model, the optimizer, the schedule and the random
states when it was done. It reads and changes nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

from tasuki.data.foreign import ForeignOrder
from tasuki.data.loader import MicroBatch
from tasuki.data.order import Order
from tasuki.data.short import ShortLoader
from tasuki.loop.hidden import Walk, digest_of, tensor_digest
from tasuki.loop.state import capture_random
from tasuki.runs.atomic import FORMAT
from tasuki.runs.lines import LineWriter
from tasuki.train.drilled import drill_order
from tasuki.train.engine import StepEngine
from tasuki.train.prepare import Setup
from tasuki.train.task import Task

Entries = dict[str, str]


def open_trace(task: Task, setup: Setup, engine: StepEngine, *, step: int) -> Trace | None:
    """None, unless this is a drill; `step` is where the attempt takes the stage up."""
    order = drill_order()
    if order is None or order.rehearsal is not None:
        return None
    path = order.trace / f"{task.orders.claim}.{task.ranks.rank}.jsonl"
    return Trace(LineWriter(path), task, setup, engine, step=step)


class Trace:
    def __init__(
        self, lines: LineWriter, task: Task, setup: Setup, engine: StepEngine, *, step: int
    ) -> None:
        self._lines, self._task, self._setup, self._engine = lines, task, setup, engine
        self._step = step
        self._has_begun = False
        self._hidden: Entries = {}
        self._before: Entries = {}
        self._batch = hashlib.blake2b(digest_size=8)
        self._ids: list[int] = []

    def begin_step(self, batches: Iterator[MicroBatch]) -> Iterator[MicroBatch]:
        """Before a step; gives its micro-batches on as they are fetched."""
        if not self._has_begun:
            self._has_begun = True
            self._lines.append(self._first_line())
        self._hidden, self._before = self._look_at_hidden(), self._random()
        self._batch, self._ids = hashlib.blake2b(digest_size=8), []
        return self._digested(batches)

    def _digested(self, batches: Iterator[MicroBatch]) -> Iterator[MicroBatch]:
        for batch in batches:
            self._batch.update(f"{batch.num_samples} {digest_of(batch.data)}\n".encode())
            self._ids += map(int, batch.indices)
            yield batch

    def undo_step(self) -> None:
        """Its next beginning forgets what was seen of it."""

    def end_step(self) -> bool:
        """After every step."""
        self._step += 1
        after = {
            "batch": self._batch.hexdigest(),
            "loss": digest_of([list(entry) for entry in self._engine.window.entries]),
            **self._state(),
        }
        self._lines.append(
            {
                "step": self._step,
                "ids": self._ids if isinstance(self._setup.order, Order) else None,
                "hidden": self._hidden,
                "before": self._before,
                "after": after,
            }
        )
        return True

    def _first_line(self) -> dict[str, Any]:
        order, task = self._setup.order, self._task
        plan = order.plan if isinstance(order, Order) else None
        return {
            "format": FORMAT,
            "begin": self._step,
            "claim": task.orders.claim,
            "rank": task.ranks.rank,
            "world": task.ranks.world,
            "steps_per_epoch": order.steps_per_epoch,
            "has_border": not isinstance(order, ForeignOrder) or order.has_length,
            "total_steps": self._setup.total_steps,
            "is_foreign": isinstance(order, ForeignOrder),
            "samples": plan.num_samples if plan is not None else None,
            "buckets": len(plan.buckets) if plan is not None else None,
            "effective_batch": order.effective_batch,
            "sets_lr": self._setup.schedule is not None,
            "state": self._state(),
        }

    def _state(self) -> Entries:
        tracked = self._setup.tracked
        entries = {
            f"model.{name}": tensor_digest(value) if hasattr(value, "shape") else digest_of(value)
            for name, value in (*tracked.model.named_buffers(), *tracked.model.state_dict().items())
        }
        entries |= self._optimizer()
        if tracked.schedule is not None:
            walk = Walk()
            walk.into("schedule", tracked.schedule.state_dict())
            entries |= walk.entries
        return entries | self._random()

    def _optimizer(self) -> Entries:
        """By the names of the parameters, not by their numbers."""
        told = self._setup.tracked.optimizer.state_dict()
        names = self._parameter_names()
        entries = {}
        for number, state in told["state"].items():
            for key, value in state.items():
                entries[f"optimizer.state.{names.get(number, number)}.{key}"] = digest_of(value)
        for number, group in enumerate(told["param_groups"]):
            for key, value in group.items():
                entries[f"optimizer.group{number}.{key}"] = digest_of(value)
        return entries

    def _parameter_names(self) -> dict[int, str]:
        """As the optimizer numbers them."""
        setup = self._setup
        named = {id(p): name for name, p in setup.model.named_parameters()}
        listed = [p for group in setup.assembled.stepper.param_groups for p in group["params"]]
        return {number: named.get(id(p), str(number)) for number, p in enumerate(listed)}

    def _random(self) -> Entries:
        return {f"random.{name}": digest_of(value) for name, value in capture_random().items()}

    def _look_at_hidden(self) -> Entries:
        setup, tracked = self._setup, self._setup.tracked
        data = setup.data.dataset
        if isinstance(data, ShortLoader):
            data = data.__dict__["whole"]
        parts = list(tracked.model.modules())
        known = [*parts, *tracked.model.parameters(), tracked.optimizer, tracked.schedule, data]
        walk = Walk(known)
        walk.module("model", tracked.model)
        if not isinstance(data, list | tuple | dict):
            walk.attributes("data", data)
        self._look_at_optimizer(walk)
        if tracked.schedule is not None:
            kept = {"optimizer", *tracked.schedule.state_dict()}
            walk.attributes("schedule", tracked.schedule, without=kept)
        walk.attributes("recipe", setup.recipe)
        owners = (setup.recipe, data, tracked.optimizer, tracked.schedule, *parts)
        for module in dict.fromkeys(type(owner).__module__ for owner in owners):
            walk.globals_of(f"module {module}", module)
        return walk.entries

    def _look_at_optimizer(self, walk: Walk) -> None:
        """What lives in the optimizer and is not in its `state_dict`."""
        optimizer = self._setup.tracked.optimizer
        walk.attributes("optimizer", optimizer)
        kept = optimizer.state_dict()["state"]
        names = self._parameter_names()
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        for number, parameter in enumerate(parameters):
            for key, value in optimizer.state.get(parameter, {}).items():
                if key not in kept.get(number, {}):
                    walk.into(f"optimizer.state.{names[number]}.{key}", value)
