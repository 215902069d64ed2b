"""Measure an attempt's memory in its first steps and tell it, once: an event and a line in the log.

A figure is never worth a run: what fails in here is told as a warning, and the training goes on.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from tasuki.data.loader import MicroBatch
from tasuki.loop.saver import Saver
from tasuki.runs.atomic import read_json
from tasuki.train.footprint import (
    Footprint,
    as_facts,
    host_available,
    host_limits,
    in_words,
    loader_bytes,
    rank_rss_bytes,
    sum_host,
)
from tasuki.train.prepare import Setup
from tasuki.train.task import Task

_STEPS = 2
"""The second step is measured: the optimizer has made its state in the first."""


class FirstSteps:
    """The steps of an attempt up to and including the one that is measured."""

    def __init__(self, task: Task, setup: Setup, saver: Saver, *, steps_left: int) -> None:
        self._task, self._saver = task, saver
        self._left = min(_STEPS, steps_left)
        self._measuring = contextlib.ExitStack()
        self._model, self._optimizer = setup.model, setup.tracked.optimizer
        self._footprint = self._begin()

    def _begin(self) -> Footprint:
        task = self._task
        hooks = not task.stage.compile
        return Footprint(self._model, self._optimizer, device=task.device, hooks=hooks)

    def begin_step(self, batches: Iterator[MicroBatch]) -> Iterator[MicroBatch]:
        self._left -= 1
        if self._left:
            return batches
        self._measuring.enter_context(self._footprint.measured())
        return self._footprint.watch(batches)

    def undo_step(self) -> None:
        """A micro-batch that did not fit is not what is to be measured."""
        self._left += 1
        self._measuring.close()
        self._footprint = self._begin()

    def end_step(self) -> bool:
        """Until its own is over."""
        if self._left:
            return True
        self._measuring.close()
        try:
            self._tell()
        except Exception as error:
            self._task.say(f"WARNING: the memory could not be measured: {error}")
        return False

    def _tell(self) -> None:
        task, buffers = self._task, self._saver.host_bytes
        host = sum_host(
            rss=rank_rss_bytes(),
            loader=loader_bytes(),
            save_buffers=buffers,
            limits=host_limits(os.environ),
            available=host_available(),
            ranks=task.ranks.world // int(read_json(task.job.lanes).get("nodes", 1)),
        )
        device = self._footprint.device(save_buffers=buffers, host_total=host.total)
        kind = task.device.type
        # In a file of its own: `status` finds it however long the attempt lasts.
        log = task.events.beside("memory")
        log.add("memory", stage=task.stage.name, on=kind, **as_facts(device, host))
        log.close()
        task.say(in_words(device, host, kind=kind))
