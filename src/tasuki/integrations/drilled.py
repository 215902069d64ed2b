"""What `tasuki drill` asks of a loop that is not ours: few steps and samples, a trace of each step.

Read from the environment, as failpoints are; without an order nothing changes. Which samples stay
is a pure function of the data's length, so that every attempt and every twin has the same ones. The
trace is that of train/trace.py, as far as a loop tells: commands/drill_diagnosis.py reads both.
"""

from __future__ import annotations

import inspect
import json
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn
from torch.optim import Optimizer

from tasuki.checkpoint.damage import damage_newest
from tasuki.data.foreign import num_batches
from tasuki.data.short import ShortLoader, may_be_left_early
from tasuki.failpoints import DRILL
from tasuki.integrations.course import Course, Holds
from tasuki.loop.hidden import Walk, digest_of
from tasuki.loop.state import capture_random
from tasuki.loop.worker import Worker
from tasuki.runs.atomic import FORMAT
from tasuki.runs.lines import LineWriter
from tasuki.runs.runs import RunFolder

_SCRIPT = "__main__"
_FRAMEWORKS = ("torch", "lightning", "transformers", "accelerate")
_NOT_USERS = {*sys.stdlib_module_names, "tasuki", *_FRAMEWORKS}

Entries = dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drill:
    steps: int
    steps_per_epoch: int
    trace: Path
    """The folder for traces."""
    damages: int | None = None
    """The attempt that finds its newest checkpoint damaged."""

    def num_samples(self, available: int, *, batch: int, accumulation: int = 1) -> int:
        """Of an epoch; its last batch is not full."""
        wanted = self.steps_per_epoch * accumulation * batch - batch // 3
        return min(available, max(1, wanted))

    def num_steps(self, wanted: int, *, accumulation: int = 1) -> int:
        """Of batches, where gradients of several are gathered."""
        return min(wanted, self.steps * accumulation)

    def num_epochs(self, wanted: int, *, batches: int, accumulation: int = 1) -> int:
        """Whole ones, with as many steps as a drill has."""
        return min(wanted, max(1, -(-self.steps * accumulation // max(1, batches))))

    def short(self, loader: Any, *, accumulation: int = 1) -> Any:
        """A loader that is not ours, whose passes end early; one that does not say how long they
        are goes on until the loop ends."""
        batches = num_batches(loader)
        if batches is None or not may_be_left_early(loader):
            return loader
        return ShortLoader(loader, min(batches, self.steps_per_epoch * accumulation))


def read_drill(environ: Mapping[str, str]) -> Drill | None:
    told = json.loads(environ.get(DRILL) or "{}")
    if not told or told.get("rehearsal"):
        return None
    return Drill(
        steps=int(told["steps"]),
        steps_per_epoch=int(told["steps_per_epoch"]),
        trace=Path(told["trace"]),
        damages=told.get("damages"),
    )


def seed_the_rest(drill: Drill | None) -> None:
    """Scripts seed torch and often nothing else. What stays unseeded is in every checkpoint, and no
    two runs would begin alike."""
    if drill is not None:
        random.seed(drill.steps)
        np.random.seed(drill.steps)


def damage_if_told(drill: Drill | None, run: RunFolder, *, claim: int, is_first: bool) -> None:
    """Before anybody looks at checkpoints: a supervisor begins such an attempt by itself."""
    if drill is not None and drill.damages == claim and is_first:
        damage_newest(run)


class LoopTrace:
    """One file per attempt and rank: the state that was restored, then a line per step."""

    def __init__(
        self,
        drill: Drill,
        worker: Worker,
        holds: Holds,
        course: Course,
        *,
        step: int,
        looks_at: Mapping[str, object],
    ) -> None:
        self._lines = LineWriter(drill.trace / f"{worker.claim}.{worker.ranks.rank}.jsonl")
        self._worker, self._holds, self._course = worker, holds, course
        self._step, self._looks_at = step, looks_at
        self._names = set(vars(sys.modules[_SCRIPT]))
        """Of the script when its loop begins: what comes later are variables of the loop."""
        self._locals: dict[str, set[str]] = {}
        """The same of the functions that go through the loop."""
        self._has_begun = False
        self._hidden: Entries = {}
        self._before: Entries = {}
        self._batches: list[str] = []

    def begin_step(self) -> None:
        if not self._has_begun:
            self._has_begun = True
            self._lines.append(self._first_line())
        self._hidden, self._before = self._look_at_hidden(), _random()
        self._batches = []

    def see(self, batch: Any) -> None:
        """A batch of the step."""
        self._batches.append(digest_of(batch))

    def end_step(self, *, indices: Sequence[int], loss: Any) -> None:
        self._step += 1
        after = {"batch": digest_of(self._batches), **self._state()}
        if loss is not None:
            after["loss"] = digest_of(loss)
        self._lines.append(
            {
                "step": self._step,
                "ids": list(map(int, indices)) if self._course.knows_samples else None,
                "hidden": self._hidden,
                "before": self._before,
                "after": after,
            }
        )

    def _first_line(self) -> dict[str, Any]:
        worker, course = self._worker, self._course
        order = course.order or {}
        return {
            "format": FORMAT,
            "begin": self._step,
            "claim": worker.claim,
            "rank": worker.ranks.rank,
            "world": worker.ranks.world,
            "steps_per_epoch": course.steps_per_epoch,
            "has_border": True,
            "total_steps": course.total_steps,
            "is_foreign": course.order is None,
            "is_loop": True,
            "accumulation": course.facts.get("accumulation", 1),
            "samples": order.get("samples"),
            "buckets": 1 if order else None,
            "effective_batch": order.get("effective_batch"),
            "sets_lr": False,
            "state": self._state(),
        }

    def _state(self) -> Entries:
        """What is shared is rank 0's to tell."""
        if not self._worker.is_first:
            return _random()
        return {**dict(_entries(self._holds.capture())), **_random()}

    def _look_at_hidden(self) -> Entries:
        """What the script carries beside what is tracked: values at its top, and what the model and
        the data have that is in no state."""
        walk = Walk(self._looks_at.values())
        for name, thing in self._looks_at.items():
            if isinstance(thing, nn.Module):
                for part in thing.modules():
                    walk.know(part)
                walk.module(name, thing)
            elif not isinstance(thing, Optimizer | list | tuple | dict):
                walk.attributes(name, thing)
        walk.globals_of(f"module {_SCRIPT}", _SCRIPT, only=self._names)
        for name, values in _functions():
            known = self._locals.setdefault(name, set(values))
            walk.values_of(f"module {name}", {k: v for k, v in values.items() if k in known})
        return walk.entries


def _functions() -> Iterator[tuple[str, dict[str, Any]]]:
    """Those of the user's own that are under way, with their variables: `main()`."""
    frame = inspect.currentframe()
    while frame is not None:
        module = str(frame.f_globals.get("__name__"))
        is_users = module.partition(".")[0] not in _NOT_USERS
        if is_users and frame.f_code.co_name != "<module>":
            yield f"{frame.f_code.co_name}()", dict(frame.f_locals)
        frame = frame.f_back


def _random() -> Entries:
    return {f"random.{name}": digest_of(value) for name, value in capture_random().items()}


def _entries(state: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in state.items():
        group = _group(name)
        yield from _leaves(group if name == group else f"{group}.{name}", value)


def _group(name: str) -> str:
    lower = name.lower()
    if lower.startswith("opt"):
        return "optimizer"
    return "schedule" if "sched" in lower else "model"


def _leaves(name: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from _leaves(f"{name}.{key}", item)
    elif isinstance(value, list | tuple) and any(isinstance(v, Mapping) for v in value):
        for number, item in enumerate(value):
            yield from _leaves(f"{name}.{number}", item)
    else:
        yield name, digest_of(value)
