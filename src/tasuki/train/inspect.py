"""What the data of a spec hold, opened as training opens them: the child of `tasuki inspect SPEC`.

Builds no model and asks for no GPU. Sizes
come from the recipe or the data set; the bytes of a sample only from samples themselves, so some of
each size are fetched, and what lies between them is interpolated.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tasuki.data.buckets import BucketPlan, plan_buckets
from tasuki.data.fetch import Request, fetch, seed_everything
from tasuki.data.foreign import is_loader
from tasuki.data.hdf5.dataset import Hdf5Dataset
from tasuki.data.hdf5.inspect import look_at_files
from tasuki.data.proposal import Slice, propose
from tasuki.data.summary import (
    NUM_LARGEST,
    Sample,
    Tally,
    choose_uppers,
    describe,
    describe_without_sizes,
)
from tasuki.errors import DataError, RecipeError, TasukiError
from tasuki.subprocesses import Progress, ProgressCallback
from tasuki.train.data import sizes_of
from tasuki.train.leaves import Leaf, leaves_of
from tasuki.train.recipe import build_dataset, load_recipe, optional, where

_MOST_SIZES = 80
"""Of more sizes than these, so many are measured, spread over all of them."""
_WITHOUT_SIZES = 9
"""Samples that are measured where sizes are unknown."""
_BUDGET_S = 20.0
"""After this long, what is measured has to do; the largest samples come first."""


def work(order: dict[str, Any], progress: ProgressCallback) -> list[dict[str, Any] | None]:
    """A description of each part, a dict with recipe, params, data, split and stage.

    None: the recipe brings a loader of its own, whose samples nobody can number.
    """
    torch.set_num_threads(1)
    return [_describe_part(part, Path(order["folder"]), progress) for part in order["parts"]]


def _describe_part(
    part: dict[str, Any], folder: Path, progress: ProgressCallback
) -> dict[str, Any] | None:
    progress(Progress(f"opening the data of {part['stage']}"))
    try:
        seed_everything(0)
        recipe = load_recipe(part["recipe"], part["params"], paths=[folder])
        dataset = build_dataset(recipe, part["data"], part["split"])
        if is_loader(dataset):
            return None
        # A data set that hands out what is stored needs no guess: its files say everything.
        is_stored = type(dataset) is Hdf5Dataset and dataset.transform is None
        if is_stored and optional(recipe, "sample_sizes") is None:
            looked = look_at_files([file.path for file in dataset.files], progress)
            return {**looked.as_json(), "proposal": _propose(part["data"], looked.tally)}
        return _describe_dataset(part["data"], dataset, _sizes(recipe, dataset), progress)
    except TasukiError as error:
        error.message = f"stage `{part['stage']}`: {error.message}"
        raise


def _sizes(recipe: Any, dataset: Any) -> Any:
    try:
        return sizes_of(recipe, dataset)
    except TasukiError:
        raise
    except Exception as error:
        raise RecipeError(f"sample_sizes failed: {where(error)}") from error


def _describe_dataset(
    source: Any, dataset: Any, sizes: Any, progress: ProgressCallback
) -> dict[str, Any]:
    plan = plan_buckets(sizes, len(dataset))
    measured = _Measured(dataset, progress)
    notes: list[str] = []
    if sizes is None:
        measured.fetch(_spread(len(dataset), _WITHOUT_SIZES), size=0)
        found = describe_without_sizes(len(dataset), round(measured.mean(0) * len(dataset)))
        proposal: dict[str, Any] | None = None
    else:
        tally = _tally(dataset, plan, measured)
        found, proposal = describe(tally), _propose(source, tally)
        if num := tally.num_left_out:
            notes = [f"samples of size 0 are left out here: {num:,} of {len(dataset):,}"]
    return {
        **found,
        **_files(source, dataset),
        "measured": len(measured.bytes),
        "columns": measured.columns(),
        "notes": notes,
        "proposal": proposal,
    }


class _Measured:
    """Samples that were fetched, what they consist of, and their bytes."""

    def __init__(self, dataset: Any, progress: ProgressCallback) -> None:
        self._dataset = dataset
        self._progress = progress
        self._end = time.monotonic() + _BUDGET_S
        self._leaves: list[Leaf] = []
        self._by_size: dict[int, list[int]] = {}
        self.bytes: dict[int, int] = {}
        """By index."""

    @property
    def is_over(self) -> bool:
        return time.monotonic() > self._end

    @property
    def sizes(self) -> list[int]:
        """Those of which samples were fetched, ascending."""
        return sorted(self._by_size)

    def mean(self, size: int) -> float:
        return sum(self._by_size[size]) / len(self._by_size[size])

    def fetch(self, indices: Sequence[int], *, size: int) -> None:
        for index in indices:
            if index in self.bytes:
                continue
            [sample] = fetch(self._dataset, Request([index], None))
            leaves = list(leaves_of(sample))
            self.bytes[index] = sum(leaf.bytes for leaf in leaves)
            self._by_size.setdefault(size, []).append(self.bytes[index])
            self._leaves += leaves
            self._progress(Progress("measuring samples", len(self.bytes), None))

    def columns(self) -> list[dict[str, Any]]:
        """What a sample consists of; lengths that differ from sample to sample are None."""
        found: dict[str, tuple[str, list[int | None] | None]] = {}
        for leaf in self._leaves:
            _, shape = found.get(leaf.name, ("", list(leaf.shape)))
            found[leaf.name] = (leaf.type, _common(shape, leaf.shape))
        return [
            {"name": name, "kind": "sample", "type": kind, "shape": shape, "bytes": None}
            for name, (kind, shape) in found.items()
        ]


def _common(known: list[int | None] | None, shape: Sequence[int]) -> list[int | None] | None:
    """None as a whole: not even the number of dimensions is the same."""
    if known is None or len(known) != len(shape):
        return None
    return [one if one == other else None for one, other in zip(known, shape, strict=True)]


def _tally(dataset: Any, plan: BucketPlan, measured: _Measured) -> Tally:
    """Samples are counted; bytes are measured on some and interpolated between their sizes."""
    sizes = np.array([bucket.size for bucket in plan.buckets], dtype=np.int64)
    samples = np.array([bucket.samples for bucket in plan.buckets], dtype=np.int64)
    largest = _fetch_largest(dataset, plan, measured)
    _fetch_some_of_each(plan, measured)
    of_sample = np.interp(sizes, measured.sizes, [measured.mean(size) for size in measured.sizes])
    has_size = sizes >= 1
    if not has_size.any():
        raise DataError("no sample has a size of at least 1", hint="look at what gives the sizes")
    first = int(_members(plan, 0)[0])
    empty = (Sample(*_place(dataset, first), 0, measured.bytes.get(first, 0)),)
    return Tally(
        sizes=sizes[has_size],
        samples=samples[has_size],
        bytes=np.rint(of_sample * samples).astype(np.int64)[has_size],
        largest=largest,
        num_left_out=int(samples[~has_size].sum()),
        left_out=() if has_size.all() else empty,
    )


def _fetch_largest(dataset: Any, plan: BucketPlan, measured: _Measured) -> tuple[Sample, ...]:
    found: list[Sample] = []
    for number in reversed(range(len(plan.buckets))):
        size = plan.buckets[number].size or 0
        indices = _members(plan, number)[: NUM_LARGEST - len(found)].tolist()
        measured.fetch(indices, size=size)
        found += [Sample(*_place(dataset, i), size, measured.bytes[i]) for i in indices]
    return tuple(sorted(found, key=lambda one: (-one.size, -one.bytes)))


def _fetch_some_of_each(plan: BucketPlan, measured: _Measured) -> None:
    """The first, the middle and the last of a size; the smallest size first, others in no order."""
    numbers = _spread(len(plan.buckets), _MOST_SIZES)
    shuffled = np.random.default_rng(0).permutation(numbers[1:]).tolist()
    for number in (numbers[0], *shuffled):
        indices = _members(plan, number)
        chosen = [int(indices[at]) for at in _spread(len(indices), 3)]
        measured.fetch(chosen, size=plan.buckets[number].size or 0)
        if measured.is_over:
            break


def _members(plan: BucketPlan, number: int) -> NDArray[np.int64]:
    """Indices of a bucket's samples."""
    index = plan.index(number)
    return np.arange(plan.num_samples) if index is None else index


def _spread(num: int, wanted: int) -> list[int]:
    """So many of 0 … num - 1: the first, the last, and between them evenly."""
    return sorted({round(at) for at in np.linspace(0, num - 1, min(num, wanted)).tolist()})


def _place(dataset: Any, index: int) -> tuple[str | None, int]:
    """(file, index in it) where that is known."""
    if not isinstance(dataset, Hdf5Dataset):
        return None, index
    for file in dataset.files:
        if index < len(file):
            return str(file.path), index
        index -= len(file)
    raise AssertionError(index)


def _files(source: Any, dataset: Any) -> dict[str, Any]:
    """Bytes on disk where the data are files; samples of those that tasuki reads itself."""
    known: list[tuple[Path, int | None]]
    if isinstance(dataset, Hdf5Dataset):
        known = [(file.path, len(file)) for file in dataset.files]
    else:
        named = [source] if isinstance(source, str) else source or []
        known = [(Path(one), None) for one in named]
    if not known or not all(path.is_file() for path, _ in known):
        return {"disk_bytes": None, "files": []}
    files = [
        {"file": str(path), "samples": num, "bytes": None, "disk_bytes": path.stat().st_size}
        for path, num in known
    ]
    return {"disk_bytes": sum(file["disk_bytes"] for file in files), "files": files}


def _propose(source: Any, tally: Tally) -> dict[str, Any]:
    first = source[0] if isinstance(source, list) else source or "data"
    one = Slice(data=source, path=re.sub(r"[-_.]*[*?[]+.*", "", first), sizes=tally.sizes.tolist())
    return propose([one], one, choose_uppers(tally))
