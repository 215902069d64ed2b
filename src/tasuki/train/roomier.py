"""An evaluation whose batch has no room is begun anew with batches of half the size.

A pass is thus a pure function of the weights, the data and the sizes of its batches; in a run these
are events on disk before they are used, each with the step from which it holds, so that who resumes
finds the same numbers to the last bit. The recipe's own `evaluate` and loaders make their batches
themselves: there nothing can be halved.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

import torch

from tasuki.runs.events import read_events
from tasuki.spec.resolved import ResolvedStage
from tasuki.train.advice import asked_for, explain_memory, let_go
from tasuki.train.task import Task

EVENT = "evaluation-batch"
Most = Mapping[int | None, int]
"""Samples of a batch (or its cost, where there are costs) by the size of its bucket, where fewer
fit than the stage's micro-batch."""
NOTHING_LESS: Most = MappingProxyType({})
Metrics = dict[str, float]
_ONE = (
    "use a GPU (or a node) with more memory, write `precision: bf16`, or evaluate data without the "
    "largest samples"
)


class BatchTooLarge(Exception):
    """A batch of an evaluation ran out of memory."""

    def __init__(
        self, error: Exception, *, size: int | None, amount: int, is_single: bool, unit: str
    ) -> None:
        super().__init__(str(error))
        self.error = error
        self.size, self.amount, self.unit = size, amount, unit
        self.is_single = is_single


class Halving(NamedTuple):
    """From now on batches of this size are smaller."""

    size: int | None
    was: int
    most: int
    unit: str
    told: str

    def in_words(self, stage: str) -> str:
        of = f" of size {self.size}" if self.size else ""
        return (
            f"WARNING: evaluating stage `{stage}` ran out of memory with a batch of {self.was} "
            f"{self.unit}{of}{self.told}: it is begun anew with at most {self.most}"
        )


def evaluate_in_room(
    evaluate: Callable[[Most], Metrics],
    *,
    stage: ResolvedStage,
    most: Most,
    decide: Callable[[Halving], None],
) -> Metrics:
    """`decide` is told of each halving before it is used."""
    while True:
        try:
            return evaluate(most)
        except BatchTooLarge as caught:
            let_go(caught.error)
            halving = _halve(caught, stage)
        # Out here, where nothing holds what the failed pass made.
        decide(halving)
        most = {**most, halving.size: halving.most}
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def _halve(caught: BatchTooLarge, stage: ResolvedStage) -> Halving:
    if caught.is_single:
        of = f" of size {caught.size}" if caught.size else ""
        doing = f"evaluating stage `{stage.name}` ran out of memory with a batch of 1 sample{of}"
        raise explain_memory(stage, caught.error, doing=doing, hint=_ONE) from caught.error
    most, told = -(-caught.amount // 2), asked_for(caught.error)
    return Halving(caught.size, caught.amount, most, caught.unit, told)


class Decisions:
    """Those of one phase of a stage, on disk."""

    def __init__(self, task: Task, phase: str) -> None:
        self._task, self._phase = task, phase
        self._told: list[tuple[int, int | None, int]] = [
            (int(event["from_step"]), event["size"], int(event["most"]))
            for event in read_events(task.run)
            if event["kind"] == EVENT
            and (event.get("stage"), event.get("phase")) == (task.stage.name, phase)
        ]

    def at(self, step: int) -> Most:
        found: dict[int | None, int] = {}
        for from_step, size, most in self._told:
            if from_step <= step:
                found[size] = min(most, found.get(size, most))
        return found

    def add(self, halving: Halving, *, step: int) -> None:
        """On disk first."""
        task = self._task
        task.events.add(
            EVENT,
            stage=task.stage.name,
            phase=self._phase,
            size=halving.size,
            from_step=step,
            most=halving.most,
            was=halving.was,
            unit=halving.unit,
            reason=f"out of memory{halving.told}",
        )
        task.events.sync()
        task.say(halving.in_words(task.stage.name))
        self._told.append((step, halving.size, halving.most))
