"""Two checkpoints, entry by entry, for `checkpoint diff`, which does it in a child process.

What counts as a difference is decided by `difference`; here it is measured. Every byte is checked
while it is read, one part of each at a time.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from tasuki.checkpoint.blobs import flat_bytes
from tasuki.checkpoint.difference import first_difference
from tasuki.checkpoint.entries import GROUPS, Place, group_entry, name_entry
from tasuki.checkpoint.manifest import Manifest
from tasuki.checkpoint.parts import read_part
from tasuki.checkpoint.verify import read_manifest
from tasuki.errors import CheckpointError
from tasuki.subprocesses import Progress, ProgressCallback

_MAPPINGS = (dict, OrderedDict, defaultdict, Counter)
_SCALARS = (type(None), bool, int, float, str)
_NUMBERS = (bool, int, float)
_WORDS = (*_SCALARS, torch.dtype, torch.device, torch.Size)
_MISSING = object()
_ONES = np.array([bin(byte).count("1") for byte in range(256)], dtype=np.uint8)
_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_SHORT = 60

Found = dict[str, Any]


@dataclass(slots=True)
class Comparison:
    """What two states have in common, and what not."""

    found: list[Found] = field(default_factory=list)
    """Differences and what only one has, in the order of the states."""
    compared: Counter[str] = field(default_factory=Counter)
    """Entries that both have, by group."""

    def add_part(self, part: int, a: object, b: object) -> None:
        num_before = len(self.found)
        self._walk(a, b, (), part)
        if len(self.found) > num_before or a is _MISSING or b is _MISSING:
            return
        # "Equal bit for bit" is the word of the function that proves restores.
        if (words := first_difference(a, b)) is not None:
            place, _, what = words.partition(": ")
            self.found.append(_NOTHING | {"name": place, "part": part, "words": what})

    def _walk(self, a: Any, b: Any, place: Place, part: int) -> None:
        if a is _MISSING or b is _MISSING:
            for leaf, value in _leaves(b if a is _MISSING else a, place):
                side = "b" if a is _MISSING else "a"
                self.found.append(_NOTHING | _describe(leaf, part, value) | {"only_in": side})
        elif type(a) is type(b) and type(a) in _MAPPINGS:
            self._walk_dicts(a, b, place, part)
        elif type(a) is type(b) and type(a) in (list, tuple) and not (_is_flat(a) and _is_flat(b)):
            for index in range(max(len(a), len(b))):
                one, other = (side[index] if index < len(side) else _MISSING for side in (a, b))
                self._walk(one, other, (*place, index), part)
        else:
            self._compare(a, b, place, part)

    def _walk_dicts(self, a: Any, b: Any, place: Place, part: int) -> None:
        # 1, 1.0 and True are one key to Python, but not to us.
        left, right = ({(type(key), repr(key)): key for key in side} for side in (a, b))
        for mark, key in (left | right).items():
            one = a[left[mark]] if mark in left else _MISSING
            other = b[right[mark]] if mark in right else _MISSING
            self._walk(one, other, (*place, key), part)
        versions = [getattr(side, "_metadata", None) for side in (a, b)]
        if None not in versions:
            self._compare(versions[0], versions[1], (*place, "_metadata"), part)

    def _compare(self, a: Any, b: Any, place: Place, part: int) -> None:
        self.compared[group_entry(place)] += 1
        words = first_difference(a, b)
        if words is not None:
            told = _describe(place, part, a) | {"words": words.removeprefix("state: ")}
            self.found.append(_NOTHING | told | measure(a, b))

    def as_json(self) -> dict[str, Any]:
        found = sorted(self.found, key=lambda one: (GROUPS.index(one["group"]), one["part"]))
        return {
            "equal": not found,
            "first": found[0] if found else None,
            "entries": self.compared.total(),
            "groups": [self._sum_group(group) for group in GROUPS if self._has(group)],
            "differing": [one for one in found if one["only_in"] is None],
            "only_in_a": [one for one in found if one["only_in"] == "a"],
            "only_in_b": [one for one in found if one["only_in"] == "b"],
        }

    def _has(self, group: str) -> bool:
        return self.compared[group] > 0 or any(one["group"] == group for one in self.found)

    def _sum_group(self, group: str) -> dict[str, Any]:
        counts = Counter(one["only_in"] for one in self.found if one["group"] == group)
        return {
            "group": group,
            "entries": self.compared[group],
            "differing": counts[None],
            "only_in_a": counts["a"],
            "only_in_b": counts["b"],
        }


_NOTHING: Found = {
    "name": "", "group": "other", "part": 0, "type": "", "only_in": None, "words": "",
    "elements": None, "num_differing": None, "largest": None, "a": None, "b": None, "at": None,
    "bits": None, "ulps": None,
}  # fmt: skip


def measure(a: Any, b: Any) -> Found:
    """By how much two values of one kind differ; nothing where that has no meaning."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return _measure_tensors(a, b) if (a.dtype, a.shape) == (b.dtype, b.shape) else {}
    if isinstance(a, (np.ndarray, np.generic)) and type(a) is type(b):
        if (a.dtype, a.shape) != (b.dtype, b.shape):
            return {}
        native = a.dtype.newbyteorder("=")
        left, right = (torch.from_numpy(np.array(side, dtype=native)) for side in (a, b))
        return _measure_tensors(left, right)
    if type(a) is type(b) and type(a) in (list, tuple):
        return _measure_lists(a, b)
    if type(a) is type(b) and type(a) in (int, float):
        values = {"elements": 1, "num_differing": 1, "a": _number(a), "b": _number(b)}
        return values | {"largest": _number(_distance(a, b))}
    return {"a": _short(a), "b": _short(b)} if type(a) in _WORDS and type(b) in _WORDS else {}


def _measure_lists(a: Any, b: Any) -> Found:
    if len(a) != len(b) or not (_is_flat(a) and _is_flat(b)):
        return {}
    pairs = [(one, other) for one, other in zip(a, b, strict=True) if first_difference(one, other)]
    found: Found = {"elements": len(a), "num_differing": len(pairs)}
    if pairs and all(type(side) in _NUMBERS for pair in pairs for side in pair):
        largest = max(pairs, key=lambda pair: _rank(_distance(*pair)))
        found |= {"largest": _number(_distance(*largest))}
        found |= {"a": _number(largest[0]), "b": _number(largest[1])}
    return found


def _measure_tensors(a: Tensor, b: Tensor) -> Found:
    left, right = (flat_bytes(side).reshape(side.numel(), side.itemsize) for side in (a, b))
    differs = (left != right).any(dim=1)
    changed = (left[differs] ^ right[differs]).numpy()
    found: Found = {
        "elements": a.numel(),
        "num_differing": int(differs.sum()),
        "bits": int(_ONES[changed].sum(dtype=np.int64)),
    }
    try:
        return found | _measure_distance(a, b, differs.nonzero().reshape(-1))
    except (RuntimeError, NotImplementedError):  # dtypes without arithmetic
        return found


def _measure_distance(a: Tensor, b: Tensor, where: Tensor) -> Found:
    one, other = (side.contiguous().reshape(-1)[where] for side in (a, b))
    wide = torch.complex128 if a.is_complex() else torch.float64
    distance = (one.to(wide) - other.to(wide)).abs()
    at = int(distance.nan_to_num(nan=-1.0, posinf=math.inf).argmax())
    place = np.unravel_index(int(where[at]), tuple(a.shape)) if a.dim() else ()
    return {
        "largest": _number(float(distance[at])),
        "a": _number(one[at].item()),
        "b": _number(other[at].item()),
        "at": [int(index) for index in place],
        "ulps": _ulps(one, other),
    }


def _ulps(one: Tensor, other: Tensor) -> int | None:
    """The largest number of steps between representable numbers: 1 is the last bit's rounding."""
    if not one.is_floating_point() or one.itemsize not in _INTEGERS:
        return None
    is_finite = one.to(torch.float64).isfinite() & other.to(torch.float64).isfinite()
    if not bool(is_finite.any()):
        return None
    signs, sizes = [], []
    for side in (one[is_finite], other[is_finite]):
        bits = side.view(_INTEGERS[side.itemsize]).to(torch.int64)
        signs.append(bits < 0)
        sizes.append(bits & (2 ** (8 * side.itemsize - 1) - 1))
    same = (sizes[0] - sizes[1]).abs()
    # On both sides of zero the way leads through it; float64 holds sums that int64 does not.
    across = sizes[0].to(torch.float64) + sizes[1].to(torch.float64)
    is_same = signs[0] == signs[1]
    near = int(same[is_same].max()) if bool(is_same.any()) else 0
    far = int(across[~is_same].max()) if bool((~is_same).any()) else 0
    return max(near, far)


def _describe(place: Place, part: int, value: Any) -> Found:
    name, group = name_entry(place, part), group_entry(place)
    return {"name": name, "group": group, "part": part, "type": _type_of(value)}


def _type_of(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {list(value.shape)}"
    if type(value) in (list, tuple):
        return f"{type(value).__name__} of {len(value)}"
    return type(value).__name__


def _leaves(value: Any, place: Place) -> Iterator[tuple[Place, Any]]:
    if type(value) in _MAPPINGS and value:
        for key, item in value.items():
            yield from _leaves(item, (*place, key))
    elif type(value) in (list, tuple) and not _is_flat(value):
        for index, item in enumerate(value):
            yield from _leaves(item, (*place, index))
    else:
        yield place, value


def _is_flat(value: Any) -> bool:
    return all(type(item) in _SCALARS for item in value)


def _distance(a: Any, b: Any) -> float:
    try:
        return abs(float(a) - float(b))
    except OverflowError:
        return math.inf


def _rank(distance: float) -> float:
    return -1.0 if math.isnan(distance) else distance


def _number(value: Any) -> Any:
    """NaN and infinities as words, huge numbers in hex: not every reader of JSON takes them."""
    if isinstance(value, complex) or (isinstance(value, float) and not math.isfinite(value)):
        return str(value)
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return hex(value)[:_SHORT]
    return value


def _short(value: Any) -> str:
    words = repr(value)
    return words if len(words) <= _SHORT else f"{words[: _SHORT - 1]}…"


class DifferentEntry(NamedTuple):
    """One entry that two checkpoints hold differently."""

    name: str
    group: str
    message: str


def find_different_entries(a: str, b: str) -> list[DifferentEntry]:
    """Compare two checkpoint folders. Entries that only one of them has are part of the list."""
    found = _compare_folders(Path(a), Path(b)).as_json()
    different = [*found["differing"], *found["only_in_a"], *found["only_in_b"]]
    return [
        DifferentEntry(one["name"], one["group"], one["words"] or f"only in {one['only_in']}")
        for one in different
    ]


def work(order: Mapping[str, Any], progress: ProgressCallback) -> dict[str, Any]:
    return _compare_folders(Path(order["a"]), Path(order["b"]), progress=progress).as_json()


def _compare_folders(*paths: Path, progress: ProgressCallback | None = None) -> Comparison:
    manifests = [read_manifest(path) for path in paths]
    num_parts = max(manifest.parts for manifest in manifests)
    comparison = Comparison()
    try:
        for part in range(num_parts):
            states = []
            for number, (path, manifest) in enumerate(zip(paths, manifests, strict=True)):
                if progress is not None:
                    progress(Progress("comparing parts:", 2 * part + number, 2 * num_parts))
                states.append(_read(path, manifest, part))
            comparison.add_part(part, *states)
    except MemoryError as error:
        size = sum(record.size for m in manifests for record in m.files)
        raise CheckpointError(
            "there is too little memory to compare the two",
            hint=f"compare them on a machine with more than {2 * size // 10**9 + 1} GB",
        ) from error
    return comparison


def _read(path: Path, manifest: Manifest, part: int) -> object:
    if part >= manifest.parts:
        return _MISSING
    return read_part(path, part, records=manifest.files, frozen=manifest.frozen)
