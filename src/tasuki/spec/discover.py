"""`stages: auto`: one stage per data set and size, small sizes first.

Pure but for `look`, the caller's way to ask which sizes the data have: reading data needs numpy and
h5py, which a spec does not know.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath

from tasuki.errors import SpecError
from tasuki.spec.expand import Draft
from tasuki.spec.layers import expand_path, merge_layers
from tasuki.spec.positions import Mark, Node
from tasuki.spec.source import Source
from tasuki.spec.values import parse_sizes

_SUFFIXES = {".h5", ".hdf5", ".hdf"}
_SPLITS = {"train", "val", "test", "data"}
"""File names that say nothing: then the folder gives the name."""


@dataclass(frozen=True, slots=True)
class Found:
    """A data set, as `data:` would name it, and the sizes of its samples."""

    source: str
    sizes: tuple[int, ...]


LookAtData = Callable[[Sequence[str], str, str], list[Found]]
"""(files, folders or patterns; the folder they are relative to; the split) → what there is"""


def find_stages(draft: Draft, weaker: Node, *, look: LookAtData | None, source: Source) -> Draft:
    """The draft with the stages that its data suggest; as it is without `stages: auto`."""
    if draft.auto is None:
        return draft
    [common] = draft.stages
    entries = merge_layers(weaker, draft.layer, common).entries()
    data = entries.get("data")
    if data is None or data.content is None:
        raise SpecError(
            f"{draft.auto.mark}: `stages: auto` of `{draft.name}` has no `data` to look at",
            hint="write for example `data: data/*.h5`",
        )
    assert look is not None, "who loads a spec brings a way to look at data"
    items = data.content if isinstance(data.content, tuple) else (data,)
    patterns = [expand_path(item, str(item.content), environ=source.environ) for item in items]
    split = entries.get("split")
    found = look(
        patterns,
        str(source.absolute.parent),
        str(split.content) if split is not None and split.content else "train",
    )
    pairs = _wanted(found, entries.get("size"))
    if not pairs:
        sizes = sorted({size for one in found for size in one.sizes})
        raise SpecError(
            f"{entries['size'].mark}: no sample has a wanted size",
            hint=f"the sizes that exist are {', '.join(str(size) for size in sizes[:20])}",
        )
    names = name_stages(pairs)
    stages = [
        _stage(common, draft.auto.mark, name, data_set, size)
        for name, (size, data_set) in zip(names, pairs, strict=True)
    ]
    return replace(draft, stages=tuple(stages), auto=None)


def name_stages(pairs: Sequence[tuple[int, str]]) -> list[str]:
    """`small_512` of `data/small.h5`, or of `data/small/train.h5`; with as many folders before it
    as tell two of one name apart."""
    sizes = Counter(source for _, source in pairs)

    def name(source: str, size: int, folders: int) -> str:
        return _name(source, size, folders=folders, is_only=sizes[source] == 1)

    names = [name(source, size, 0) for size, source in pairs]
    for folders in range(1, max(len(PurePath(source).parts) for _, source in pairs)):
        times = Counter(names)
        names = [
            known if times[known] == 1 else name(source, size, folders)
            for known, (size, source) in zip(names, pairs, strict=True)
        ]
    # Names that only differ in characters which a name cannot have.
    times = Counter(names)
    return [
        known if times[known] == 1 else f"{known}-{number}"
        for number, known in enumerate(names, start=1)
    ]


def _wanted(found: Sequence[Found], size: Node | None) -> list[tuple[int, str]]:
    pairs = [(size, one.source) for one in found for size in one.sizes]
    if size is not None and size.content is not None:
        sizes = parse_sizes(size.plain())
        pairs = [pair for pair in pairs if sizes.contains(pair[0])]
    return sorted(pairs)


def _name(source: str, size: int, *, folders: int, is_only: bool) -> str:
    """`is_only`: the data set has one size, which its own name may say already."""
    path = PurePath(source)
    *before, last = (path.parts[1:] if path.is_absolute() else path.parts) or ("",)
    last = last.removesuffix(path.suffix if path.suffix.lower() in _SUFFIXES else "")
    if last in _SPLITS and before:
        last = before.pop()
    stem = "_".join([*before[max(0, len(before) - folders) :], last])
    is_said = is_only and re.search(rf"(?<!\d){size}(?!\d)", stem) is not None
    return _clean(stem if is_said else f"{stem}_{size}")


def _clean(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]+", "_", name, flags=re.ASCII).strip("_.-") or "stage"


def _stage(common: Node, mark: Mark, name: str, data: str, size: int) -> Node:
    own = {"name": Node(name, mark), "data": Node(data, mark), "size": Node(size, mark)}
    return Node({**common.entries(), **own}, mark)
