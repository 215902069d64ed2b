"""What a file of samples holds, and whether it can be read: looked at once, when it is opened.

    n            whole numbers (S,): the size of each sample; every file has it
    NAME         first dimension S: one row per sample
    NAME         flat, with NAME_offsets (S + 1): sample i has the rows offsets[i] … offsets[i + 1]
    samples/I    a group per sample, I = 0 … S - 1, with the sample's data sets

Other groups and single values are left alone. Only what the header says is looked at here: damage
inside the data shows when it is read (reader.py), or is looked for (check.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from tasuki.errors import DataError

SIZES = "n"
OFFSETS = "_offsets"
GROUPS = "samples"
_N_HINT = 'add the size of each sample: file.create_dataset("n", data=sizes), whole numbers'


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One data set of every sample."""

    name: str
    kind: Literal["rows", "flat", "groups"]
    dtype: np.dtype[Any]
    shape: tuple[int, ...] | None
    """Of a sample (rows) or of one of its rows (flat); None: each group has its own."""

    @property
    def row_bytes(self) -> int:
        """Of a sample (rows), or of one of its rows (flat); of one number for groups."""
        return self.dtype.itemsize * int(np.prod(self.shape or (), dtype=np.int64))


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """What every sample of a file consists of."""

    num_samples: int
    columns: tuple[Column, ...]
    """Without `n`, sorted by name."""

    @property
    def is_grouped(self) -> bool:
        return any(column.kind == "groups" for column in self.columns)

    def column(self, name: str) -> Column | None:
        return next((column for column in self.columns if column.name == name), None)


def read_layout(file: Any, path: Path) -> Layout:
    """The layout of an open h5py file, or a DataError that says what is missing."""
    num_samples = _count_samples(file, path)
    found = {name: _follow(file, name, path) for name in file if name != SIZES}
    sets = {name: data for name, data in found.items() if hasattr(data, "shape")}
    offsets = {name + OFFSETS for name in sets}
    columns = [
        _column(name, data, sets, num_samples, path)
        for name, data in sets.items()
        if name not in offsets and data.ndim
    ]
    if GROUPS in found and GROUPS not in sets:
        columns += _group_columns(found[GROUPS], num_samples, path)
    return Layout(
        num_samples=num_samples, columns=tuple(sorted(columns, key=lambda column: column.name))
    )


def _follow(file: Any, name: str, path: Path) -> Any:
    try:
        return file[name]
    except KeyError as error:
        if not hasattr(file.get(name, getlink=True), "path"):
            raise  # no link: the data set itself is damaged
        raise DataError(
            f"`{name}` of `{path}` is a link that leads nowhere",
            hint="put the file that it names beside this one, or delete the link",
        ) from error


def _count_samples(file: Any, path: Path) -> int:
    if SIZES not in file or not hasattr(file[SIZES], "shape"):
        has = (
            f"it has {', '.join(f'`{name}`' for name in list(file)[:6])}" if len(file) else "empty"
        )
        raise DataError(f"`{path}` has no `n` ({has})", hint=_N_HINT)
    sizes = file[SIZES]
    if sizes.ndim != 1 or sizes.dtype.kind not in "iu":
        raise DataError(
            f"`n` of `{path}` is {sizes.dtype} in the shape {sizes.shape}: not a size per sample",
            hint=_N_HINT,
        )
    if len(sizes) == 0:
        raise DataError(f"`{path}` has no samples", hint="`n` is there, but has no entries")
    return len(sizes)


def _column(name: str, data: Any, sets: dict[str, Any], num_samples: int, path: Path) -> Column:
    if data.dtype.kind not in "biufc":
        raise DataError(
            f"`{name}` of `{path}` holds {data.dtype}, which cannot become a tensor",
            hint="store whole numbers, floats or booleans; keep text in attributes",
        )
    dtype, offsets = data.dtype.newbyteorder("="), sets.get(name + OFFSETS)
    if offsets is None:
        if data.shape[0] != num_samples:
            raise DataError(
                f"`{name}` of `{path}` has {data.shape[0]} rows for {num_samples} samples",
                hint=f"give one row per sample, or add `{name}{OFFSETS}` with {num_samples + 1} "
                "entries: where each sample begins, and the end",
            )
        return Column(name=name, kind="rows", dtype=dtype, shape=data.shape[1:])
    if offsets.shape != (num_samples + 1,) or offsets.dtype.kind not in "iu":
        raise DataError(
            f"`{name}{OFFSETS}` of `{path}` is {offsets.dtype} in the shape {offsets.shape}, but "
            f"{num_samples} samples need {num_samples + 1} whole numbers",
            hint="they say where each sample begins, and the last one where all end",
        )
    return Column(name=name, kind="flat", dtype=dtype, shape=data.shape[1:])


def _group_columns(group: Any, num_samples: int, path: Path) -> list[Column]:
    if len(group) != num_samples or "0" not in group:
        raise DataError(
            f"`{path}` has {len(group)} groups in `{GROUPS}` for {num_samples} sizes in `n`",
            hint=f"name the groups `{GROUPS}/0` … `{GROUPS}/{num_samples - 1}`",
        )
    first = group["0"]
    return [
        Column(name=name, kind="groups", dtype=first[name].dtype.newbyteorder("="), shape=None)
        for name in first
        if hasattr(first[name], "shape") and first[name].dtype.kind in "biufc"
    ]


def refuse_different(layouts: Sequence[tuple[Path, Layout]]) -> None:
    """Several files are one data set only if their samples consist of the same."""
    (first_path, first), *others = layouts
    for path, layout in others:
        ours = {column.name: column for column in first.columns}
        theirs = {column.name: column for column in layout.columns}
        for name in sorted(ours.keys() | theirs.keys()):
            one, other = ours.get(name), theirs.get(name)
            if one is None or other is None:
                have, lack = (first_path, path) if other is None else (path, first_path)
                raise DataError(
                    f"`{have}` has `{name}`, but `{lack}` does not",
                    hint="files that are read together need the same data sets",
                )
            if (one.dtype, one.kind, one.shape) != (other.dtype, other.kind, other.shape):
                raise DataError(
                    f"`{name}` is {_told(one)} in `{first_path}`, but {_told(other)} in `{path}`",
                    hint="files that are read together need the same types and shapes",
                )


def _told(column: Column) -> str:
    if column.kind == "groups":
        return f"{column.dtype} in groups"
    shape = "×".join(str(size) for size in column.shape or ()) or "one number"
    return f"{column.dtype} ({shape} per {'sample' if column.kind == 'rows' else 'row'})"
