"""Which stages a rehearsal tries next, and with what: pure.

A round is what `tasuki run` would do: experiments with their stages, one after another. A stage
that fails ends its experiment's round, so the others come in the next one; they start from the
weights that are there by then. What starts from weights that will never be is not tried.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import msgspec

from tasuki.spec.resolved import ResolvedExperiment, ResolvedStage, start_of

Key: TypeAlias = tuple[str, str]
"""Experiment and stage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How a stage is rehearsed."""

    ranks: int
    """As the spec says."""
    is_stand_in: bool
    """On a CPU, where the spec asks for a GPU."""
    micro_batch: int | None = None
    """As a person says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortened:
    stage: ResolvedStage
    effective_batch: int | None
    """Of the whole stage; None: a loader or budget of one's own decides."""
    said: tuple[str, ...] = ()
    """What is otherwise than it will be."""


@dataclass(slots=True)
class Books:
    """What is known so far."""

    weights: dict[Key, Path | None] = field(default_factory=dict)
    """Of stages that were tried: None where nothing came of it."""

    def is_over(self, key: Key) -> bool:
        return key in self.weights


_MOST_MICRO_BATCHES = 2
"""Of a step: what more of them would show, two show."""
_STAND_IN_BATCH = 2


def shorten(stage: ResolvedStage, shape: Shape, *, evaluates: bool) -> Shortened:
    """Few samples a step, nothing written elsewhere; everything else as it is."""
    said: list[str] = []
    changes: dict[str, object] = {"export": None, "gpus": None}
    if stage.evaluate is not None:
        after = msgspec.structs.replace(stage.evaluate, after="each_stage")
        changes["evaluate"] = after if evaluates and stage.evaluate.command is None else None
    if shape.is_stand_in:
        changes |= dict(_for_cpu(stage, said))
    effective = _effective_batch(stage, shape.ranks)
    micro = _micro_batch(stage, effective, shape)
    if shape.micro_batch is not None or (effective is not None and micro is not None):
        assert micro is not None
        whole = effective if effective is not None else micro
        few = min(whole, _MOST_MICRO_BATCHES * micro)
        changes |= {"effective_batch": few, "micro_batch": min(micro, few), "accumulation": None}
        if few < whole:
            said.append(f"{few} of {whole} samples a step, {micro} at once")
    return Shortened(
        stage=msgspec.structs.replace(stage, **changes),
        effective_batch=effective,
        said=tuple(said),
    )


def _for_cpu(stage: ResolvedStage, said: list[str]) -> Iterator[tuple[str, object]]:
    if stage.precision == "fp16":
        said.append("bf16 instead of fp16")
        yield "precision", "bf16"
    if stage.compile is not False:
        said.append("not compiled")
        yield "compile", False
    if stage.offload:
        yield "offload", False


def _effective_batch(stage: ResolvedStage, ranks: int) -> int | None:
    if stage.effective_batch is not None:
        return stage.effective_batch
    if isinstance(stage.micro_batch, int) and stage.accumulation is not None:
        return stage.micro_batch * stage.accumulation * ranks
    return None


def _micro_batch(stage: ResolvedStage, effective: int | None, shape: Shape) -> int | None:
    """None: a rank's whole share, halved where it does not fit."""
    if shape.micro_batch is not None:
        return shape.micro_batch
    known = stage.micro_batch if isinstance(stage.micro_batch, int) else None
    if known is None and stage.accumulation is not None and effective is not None:
        known = max(1, effective // (stage.accumulation * shape.ranks))
    if not shape.is_stand_in:
        return known
    whole = known or effective
    return None if whole is None else min(whole, _STAND_IN_BATCH)


def source_of(experiment: ResolvedExperiment, number: int) -> Key | None:
    """Whose weights a stage starts from; None: nobody's, or a file's."""
    stage = experiment.stages[number]
    match start_of(stage.init_from):
        case "previous":
            return experiment.name, experiment.stages[number - 1].name
        case "stage":
            return experiment.name, stage.init_from
        case "experiment":
            name, _, source = stage.init_from.partition("/")
            return name, source
        case _:
            return None


def what_is_needed(
    experiments: Sequence[ResolvedExperiment], wanted: Sequence[Key], trained: Mapping[Key, Path]
) -> list[Key]:
    """Those that are wanted, and those whose weights they start from, where nobody has trained
    them; in the order of the spec."""
    sources = {
        (e.name, stage.name): source_of(e, number)
        for e in experiments
        for number, stage in enumerate(e.stages)
    }
    needed: set[Key] = set()
    left = [key for key in wanted if key in sources]
    while left:
        key = left.pop()
        needed.add(key)
        source = sources[key]
        if source is not None and source in sources and source not in trained:
            left += [] if source in needed else [source]
    return [key for key in sources if key in needed]


def blocked(experiments: Sequence[ResolvedExperiment], books: Books) -> list[tuple[Key, Key]]:
    """(stage, the one whose weights it would need) where these will never be; to be written into
    the books, after which there may be more."""
    found = []
    for experiment in experiments:
        for number, stage in enumerate(experiment.stages):
            key, source = (experiment.name, stage.name), source_of(experiment, number)
            is_lost = source is not None and books.is_over(source) and not books.weights[source]
            if source is not None and is_lost and not books.is_over(key):
                found.append((key, source))
    return found


def next_round(
    experiments: Sequence[ResolvedExperiment], books: Books
) -> tuple[ResolvedExperiment, ...]:
    """What is left to try, each with its start rewritten to what is there."""
    found = []
    for experiment in experiments:
        stages = [
            msgspec.structs.replace(stage, init_from=_start(experiment, number, books))
            for number, stage in enumerate(experiment.stages)
            if not books.is_over((experiment.name, stage.name))
        ]
        if stages:
            found.append(msgspec.structs.replace(experiment, stages=tuple(stages)))
    return tuple(found)


def _start(experiment: ResolvedExperiment, number: int, books: Books) -> str:
    stage, source = experiment.stages[number], source_of(experiment, number)
    if source is None:
        return stage.init_from
    weights = books.weights.get(source)
    if weights is not None:
        return str(weights)
    return source[1] if source[0] == experiment.name else stage.init_from
