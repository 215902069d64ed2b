"""What can be known of stages before they run: their data, and the memory of a step.

Data are opened as training opens them, and what they take of the host's memory is measured; a step
is traced by memory. Where the recipe has `example_batch`, stages that differ in data and size alone
share a probe. What cannot be traced is measured by a few real steps, if the order says that it may
be; else nothing is trained, and no GPU asked for. Writes nothing.

A child process of `estimate`, `plan` and `inspect` calls `survey` once for all stages, since
importing torch takes longer than most of what follows. The order: {"folder", "device", "ranks",
"may_measure": may real steps be taken where none can be traced?, "have": {key of a probe: {"sizes",
"is_exact"}}, "stages": [{"stage": plain values, "facts": null or what was answered before}]}. The
answer: {"code": {file: sha256}, "facts": [one for each stage], "probes": {key: {"probe",
"untraced", "unmeasured", "sizes"}}}.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tasuki.data.fetch import Request, seed_everything
from tasuki.data.foreign import ForeignOrder
from tasuki.errors import DataError, TasukiError
from tasuki.estimation.works import covers, in_one_micro_batch, is_by_cost, probe_work, sizes_in
from tasuki.memory import child as probe_child
from tasuki.memory.by_cost import probe_by_cost, worst_of
from tasuki.spec.resolved import ResolvedStage, stage_from_plain, to_plain
from tasuki.subprocesses import Progress, ProgressCallback, importing
from tasuki.train.data import StageData, prepare_data, sizes_of
from tasuki.train.examples import check_example
from tasuki.train.footprint import rank_rss_bytes
from tasuki.train.leaves import leaves_of
from tasuki.train.made_of import code_of
from tasuki.train.recipe import load_recipe, optional

_NICE = 10
"""As memory/child.py: behind everything else."""


def survey(order: dict[str, Any], progress: ProgressCallback) -> dict[str, Any]:
    torch.set_num_threads(1)
    ranks, wanted = int(order["ranks"]), order["stages"]
    surveyed = []
    for number, one in enumerate(wanted):
        what = f"looking at the data of {one['stage']['name']}"
        progress(Progress(what, number, len(wanted)))
        surveyed.append(_survey(one, Path(order["folder"]), ranks))
    return {
        "code": code_of([one.recipe for one in surveyed], Path(order["folder"])),
        "facts": [one.facts for one in surveyed],
        "probes": dict(_probes(surveyed, order, progress)),
    }


class _Surveyed:
    """A stage, its recipe, and what is known of its data."""

    def __init__(self, stage: ResolvedStage, recipe: Any, facts: dict[str, Any]) -> None:
        self.stage, self.recipe, self.facts = stage, recipe, facts


def _survey(one: Mapping[str, Any], folder: Path, ranks: int) -> _Surveyed:
    stage = stage_from_plain(one["stage"])
    assert stage.recipe is not None
    try:
        seed_everything(0)
        recipe = load_recipe(stage.recipe, stage.params, paths=[folder])
        facts = one["facts"]
        return _Surveyed(stage, recipe, _look(recipe, stage, ranks) if facts is None else facts)
    except TasukiError as error:
        error.message = f"stage `{stage.name}`: {error.message}"
        raise


def _look(recipe: Any, stage: ResolvedStage, ranks: int) -> dict[str, Any]:
    """What the data hold; without data, what the spec says and the recipe can make up."""
    example = optional(recipe, "example_batch")
    imported = rank_rss_bytes()
    known = {"has_example": example is not None, "import_bytes": imported}
    try:
        data = prepare_data(recipe, stage, rank=0, world=ranks)
    except DataError as error:
        if example is None:
            hint = "or give the recipe example_batch(self, size, batch): memory is then foretold"
            error.hint = f"{error.hint}; {hint}" if error.hint else hint
            raise
        return {**known, **_without_data(stage), "no_data": error.message}
    facts = {**known, **_of_data(recipe, stage, data), "no_data": None}
    # Samples that were read lie in caches by now, as they will in a run.
    return {**facts, "data_bytes": max(0, rank_rss_bytes() - imported)}


def _without_data(stage: ResolvedStage) -> dict[str, Any]:
    sizes: Sequence[int | None] = [None]
    if stage.size is not None:
        low, high = stage.size.low, stage.size.high
        sizes = stage.size.values if low is None or high is None else sorted({low, high})
    names = ("samples", "steps", "sample_bytes", "cost", "whole_cost", "mean_cost")
    empty = dict.fromkeys(names)
    return {
        "samples": None,
        "steps_per_epoch": None,
        "total_steps": stage.length.count if stage.length.unit == "steps" else None,
        "is_foreign": False,
        "data_bytes": None,
        "buckets": [{"size": size, "largest": size, **empty} for size in sizes],
    }


def _of_data(recipe: Any, stage: ResolvedStage, data: StageData) -> dict[str, Any]:
    order = data.order
    known = {
        "steps_per_epoch": order.steps_per_epoch,
        "total_steps": order.total_steps(stage.length.unit, stage.length.count),
        "is_foreign": isinstance(order, ForeignOrder),
    }
    if isinstance(order, ForeignOrder):
        names = ("size", "largest", "samples", "sample_bytes", "cost", "whole_cost", "mean_cost")
        nothing = dict.fromkeys(names)
        return {**known, "samples": None, "buckets": [{**nothing, "steps": order.steps_per_epoch}]}
    buckets = list(_buckets(recipe, data))
    return {**known, "samples": order.plan.num_samples, "buckets": buckets}


def _buckets(recipe: Any, data: StageData) -> Iterator[dict[str, Any]]:
    """Each with its largest sample: that one decides what a step takes."""
    plan = data.order.plan
    sizes = sizes_of(recipe, data.dataset)
    worst = None if data.split.costs is None else worst_of(data)
    for number, bucket in enumerate(plan.buckets):  # type: ignore[union-attr]
        found = plan.index(number)  # type: ignore[union-attr]
        members = np.arange(bucket.samples) if found is None else found
        own = None if sizes is None else np.asarray(sizes)[members]
        which = members[:2] if own is None else members[own == own.max()][:2]
        largest = None if own is None else int(own.max())
        seeds = [0] if data.fetcher.is_seeded else None
        sample = data.fetcher(Request([int(which[0])], seeds))
        check_example(recipe, data, size=largest, samples=which.tolist())
        yield {
            "size": bucket.size,
            "largest": largest,
            "samples": bucket.samples,
            "steps": -(-bucket.samples // data.batch.effective_batch),
            "sample_bytes": sum(leaf.bytes for leaf in leaves_of(sample)),
            "cost": None if worst is None else worst.dearest,
            "whole_cost": None if worst is None else worst.whole,
            "mean_cost": None if worst is None else worst.mean,
        }


def _probes(
    surveyed: Sequence[_Surveyed], order: Mapping[str, Any], progress: ProgressCallback
) -> Iterator[tuple[str, dict[str, Any]]]:
    """One for all stages with the same work, unless what is there already tells of them."""
    works: dict[str, list[_Surveyed]] = {}
    for one in surveyed:
        where_to = {name: order[name] for name in ("folder", "device", "ranks")}
        key = probe_work(one.stage, one.facts, **where_to)
        works.setdefault(key, []).append(one)
    for number, (key, group) in enumerate(works.items(), 1):
        by_cost = is_by_cost(group[0].facts)
        sizes = set() if by_cost else {size for one in group for size in sizes_in(one.facts)}
        have = order["have"].get(key)
        if have is not None and covers(have["sizes"], sizes, is_exact=have["is_exact"]):
            continue
        sizes |= set(have["sizes"] if have is not None else ())
        progress(Progress("importing what traces a step"))
        with importing():  # the first fake tensor would import it, looking for garbage meanwhile
            importlib.import_module("torch._dynamo")
        place = f" ({number} of {len(works)})" if len(works) > 1 else ""
        about = f"of {group[-1].stage.name}{place}"

        def report(step: Progress, about: str = about) -> None:
            progress(Progress(f"{step.what} {about}", step.done, step.total))

        yield key, _probe(group[-1], sorted(sizes), order, report)


def _probe(
    one: _Surveyed, sizes: list[int], order: Mapping[str, Any], progress: ProgressCallback
) -> dict[str, Any]:
    if is_by_cost(one.facts):
        return _probe_by_cost(one, order, progress)
    # Without an example the probe reads the data itself, and knows their sizes.
    asked = {
        "stage": to_plain(in_one_micro_batch(one.stage)),
        "folder": order["folder"],
        "device": order["device"],
        "ranks": int(order["ranks"]),
        "sizes": sizes if one.facts["has_example"] else [],
        "may_measure": order["may_measure"],
    }
    try:
        found = probe_child.work(asked, progress)
    except TasukiError as error:
        error.message = f"stage `{one.stage.name}`: {error.message}"
        if one.facts["no_data"] is not None and not sizes:
            error.hint = "without data a stage must say its `size:`"
        raise
    return {**found, "sizes": sizes}


def _probe_by_cost(
    one: _Surveyed, order: Mapping[str, Any], progress: ProgressCallback
) -> dict[str, Any]:
    stage, ranks = in_one_micro_batch(one.stage), int(order["ranks"])
    os.nice(_NICE)
    data = prepare_data(one.recipe, stage, rank=0, world=ranks)
    asked = {name: order[name] for name in ("folder", "device", "ranks", "may_measure")}
    return {**probe_by_cost(one.recipe, stage, data, asked, progress), "sizes": []}
