"""When are two stages the same work to whoever foretells them? While their keys are the same.

Pure, and free of torch: keys are made of a stage's plain values, so that what was found out once is
found again without importing anything. What a key cannot hold (code, data, torch's version) is kept
beside the answer and compared (commands/kept.py). Used by commands/predict.py, commands/measure.py
and train/survey.py.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from tasuki.data.split import resolve_batch, share_of_rank
from tasuki.data.tempo import share_cpus
from tasuki.spec.resolved import ResolvedStage, to_plain

_VERSION = 2
"""Of what is kept: another one makes all of it untrue."""
_OF_STEP = (
    "recipe",
    "params",
    "precision",
    "gradient_checkpointing",
    "offload",
    "clip",
    "exact",
    "compile",
)
"""Keys of a stage on which the memory of a step hangs, beside batch and size."""
_OF_DATA = ("data", "size", "split", "buckets")
_OF_TIME = (*_OF_STEP, *_OF_DATA, "order", "loader", "allocator")
"""Keys on which the time of a step hangs, beside its batch; not on names, seeds or rates."""


def facts_key(stage: ResolvedStage, *, folder: str, ranks: int) -> str:
    """Of what the data of a stage hold."""
    plain = to_plain(stage)
    told = {name: plain[name] for name in ("recipe", "params", "length", *_OF_DATA)}
    micro = None if stage.micro_batch == "auto" else stage.micro_batch
    batch = resolve_batch(stage.effective_batch, micro, stage.accumulation, ranks)
    return _digest("facts", told, folder, ranks, batch.effective_batch)


def probe_work(
    stage: ResolvedStage, facts: Mapping[str, Any], *, folder: str, device: str, ranks: int
) -> str:
    """Of the memory of a step. Batches that the recipe makes up do not hang on the data, but on
    whether they have a size."""
    plain = to_plain(stage)
    has_example, has_sizes = bool(facts["has_example"]), bool(sizes_in(facts))
    names = (*_OF_STEP, *_OF_DATA) if is_of_data(facts) else _OF_STEP
    told = {name: plain[name] for name in names}
    kind: list[object] = [ranks > 1, has_example, has_sizes]
    if is_by_cost(facts):
        kind += [ranks, *(bucket["whole_cost"] for bucket in facts["buckets"])]
    return _digest("probe", told, folder, device, kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where steps are measured."""

    folder: str
    device: str
    ranks: int
    cpus: int
    """Of all ranks together."""
    machine: tuple[str, ...]
    """The processor, packages, variables: whatever else steps are faster or slower with."""


def threads_of(stage: ResolvedStage, *, device: str, ranks: int, cpus: int) -> int:
    """As many as a rank of the run will have."""
    workers = stage.loader.workers if isinstance(stage.loader.workers, int) else None
    return share_cpus(cpus // ranks, is_gpu=device == "cuda", workers=workers)[0]


def timed_key(stage: ResolvedStage, place: Place) -> str:
    """Of the time of a rank's step: another number of ranks with the same share for each is the
    same work. Samples that are dealt out by cost are others for each number."""
    micro = None if stage.micro_batch == "auto" else stage.micro_batch
    batch = resolve_batch(stage.effective_batch, micro, stage.accumulation, place.ranks)
    share = [len(share_of_rank(batch.effective_batch, 0, place.ranks)), batch.micro_batch]
    if stage.buckets.kind == "cost":
        share += [batch.effective_batch, place.ranks]
    return _digest("timed", _time_facts(stage, place), _threads(stage, place), share)


def begun_key(stage: ResolvedStage, place: Place) -> str:
    """Of how long a rank takes to begin, and to save, whatever its share of a step."""
    return _digest("begun", _time_facts(stage, place))


def measured_key(stage: ResolvedStage, place: Place) -> str:
    """Of all that is measured of a stage's training: how long a step takes, how many there are."""
    plain = to_plain(stage)
    names = ("length", "effective_batch", "micro_batch", "accumulation")
    told = {name: plain[name] for name in names}
    own = [told, place.ranks, _threads(stage, place)]
    return _digest("measured", _time_facts(stage, place), own)


def _time_facts(stage: ResolvedStage, place: Place) -> list[Any]:
    plain = to_plain(stage)
    told = {name: plain[name] for name in _OF_TIME}
    return [told, place.folder, place.device, list(place.machine)]


def _threads(stage: ResolvedStage, place: Place) -> int:
    return threads_of(stage, device=place.device, ranks=place.ranks, cpus=place.cpus)


def is_by_cost(facts: Mapping[str, Any]) -> bool:
    """Do the data tell what samples cost? Then these are what is traced."""
    return any(bucket.get("whole_cost") is not None for bucket in facts["buckets"])


def is_of_data(facts: Mapping[str, Any]) -> bool:
    """Is a probe made of the stage's own data?"""
    return not facts["has_example"] or is_by_cost(facts)


def sizes_in(facts: Mapping[str, Any]) -> list[int]:
    """That a probe must tell of: of each bucket the largest; none where batches have no size."""
    return [b["largest"] for b in facts["buckets"] if b["largest"] is not None]


def in_one_micro_batch(stage: ResolvedStage) -> ResolvedStage:
    """As it is traced: what several take follows from one (accumulated.py)."""
    return msgspec.structs.replace(stage, accumulation=None, micro_batch="auto")


def checkpointing(stage: ResolvedStage) -> ResolvedStage:
    return msgspec.structs.replace(stage, gradient_checkpointing=True)


def covers(traced: Collection[int], wanted: Collection[int], *, is_exact: bool) -> bool:
    """Do traces of these sizes tell of those? Between three of them every size is told exactly."""
    if set(wanted) <= set(traced):
        return True
    if not is_exact or len(set(traced)) < 3:
        return False
    return min(traced) <= min(wanted) and max(wanted) <= max(traced)


def _digest(*facts: Any) -> str:
    text = json.dumps([_VERSION, *facts], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:32]
