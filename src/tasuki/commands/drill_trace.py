"""The traces that ranks leave in a drill (train/trace.py), as values. No torch: they are text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from tasuki.runs.lines import read_lines

Entries = Mapping[str, str]
"""From what it is called to a text that is equal only where the value is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTrace:
    step: int
    """Counts the steps that were done after it."""
    ids: tuple[int, ...] | None = None
    """The samples of this rank; None: a loader of the user's own does not tell."""
    hidden: Entries = field(default_factory=dict)
    """What no checkpoint holds, when the step began."""
    before: Entries = field(default_factory=dict)
    """Random states when the step began."""
    after: Entries = field(default_factory=dict)
    """Batch, loss, model, optimizer, schedule and random states when it was done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptTrace:
    """One attempt on one rank."""

    claim: int
    rank: int = 0
    begin: int = 0
    """The step from which it went on."""
    state: Entries = field(default_factory=dict)
    """What was restored."""
    steps: tuple[StepTrace, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def end(self) -> int:
        return self.steps[-1].step if self.steps else self.begin


def read_traces(folder: Path) -> list[AttemptTrace]:
    """In the order of attempts, then ranks. An attempt that never got to a step left none."""
    found = [trace for path in folder.glob("*.jsonl") for trace in _read(path)]
    return sorted(found, key=lambda trace: (trace.claim, trace.rank))


def _read(path: Path) -> Iterator[AttemptTrace]:
    """More than one where an attempt went back by itself (`on_nan: roll_back`)."""
    parts: list[list[dict[str, Any]]] = []
    for line in read_lines(path):
        if "begin" in line:
            parts.append([])
        if parts:
            parts[-1].append(line)
    for first, *steps in parts:
        yield AttemptTrace(
            claim=first["claim"],
            rank=first["rank"],
            begin=first["begin"],
            state=first["state"],
            steps=tuple(_step(line) for line in steps),
            facts=first,
        )


def _step(line: Mapping[str, Any]) -> StepTrace:
    ids = line["ids"]
    return StepTrace(
        step=line["step"],
        ids=None if ids is None else tuple(ids),
        hidden=line["hidden"],
        before=line["before"],
        after=line["after"],
    )


def replayed(traces: Sequence[AttemptTrace]) -> int:
    """Steps that a later attempt had to do again."""
    own = [trace for trace in traces if trace.rank == 0]
    return sum(max(0, before.end - after.begin) for before, after in pairwise(own))


def is_each_sample_once(traces: Sequence[AttemptTrace], *, steps_per_epoch: int) -> bool | None:
    """Of the steps that counted: each sample once per epoch, every epoch the same samples; None
    where nobody knows which samples they were. An epoch that was not finished may lack some."""
    used: dict[int, list[int]] = {}
    for step, ids in _counted(traces):
        if ids is None:
            return None
        used.setdefault((step - 1) // steps_per_epoch, []).extend(ids)
    if not used or any(len(set(ids)) != len(ids) for ids in used.values()):
        return False
    whole = set(used[0])
    last = max(used)
    return all(set(ids) == whole or (e == last and set(ids) <= whole) for e, ids in used.items())


def _counted(traces: Sequence[AttemptTrace]) -> Iterator[tuple[int, tuple[int, ...] | None]]:
    """(step, samples) on every rank, as the attempt did them that had the last word on the step."""
    steps: dict[tuple[int, int], StepTrace] = {}
    for trace in traces:
        for done in [key for key in steps if key[0] == trace.rank and key[1] > trace.begin]:
            del steps[done]
        steps |= {(trace.rank, step.step): step for step in trace.steps}
    for (_, number), step in sorted(steps.items()):
        yield number, step.ids
