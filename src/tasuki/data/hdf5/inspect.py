"""What HDF5 files of samples hold: the child process of `tasuki inspect`.

Reads sizes and offsets, block after block, never
the data of samples. The bytes of a sample are those of its arrays as they are in memory, without
`n` and the offsets. Samples without a size are left out, and said to be; other damage is for
check.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np

from tasuki.data.hdf5.files import find_files
from tasuki.data.hdf5.layout import GROUPS, OFFSETS, SIZES, Column, Layout, refuse_different
from tasuki.data.hdf5.reader import Hdf5File, Ints, open_file
from tasuki.data.proposal import Slice, propose
from tasuki.data.summary import Tally, choose_uppers, describe
from tasuki.errors import DataError
from tasuki.subprocesses import Progress, ProgressCallback

_TRAINED = "train"
_NOT_TRAINED = ("val", "test")
_BLOCK = 1 << 18
"""Samples at a time: some 30 MB."""
_GROUP_BLOCK = 4096
"""Groups are opened one by one: every so many the asker hears how far it is."""

Tell = Callable[[int], None]


def work(order: dict[str, Any], progress: ProgressCallback) -> dict[str, Any]:
    sources: list[str] = order["sources"]
    found = {source: _distinct(find_files(source, None)) for source in sources}
    looked = look_at_files([path for paths in found.values() for path in paths], progress)
    return {**looked.as_json(), "proposal": _propose(found, looked)}


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    path: Path
    tally: Tally
    columns: dict[str, int]
    """Bytes of each data set."""
    num_damaged: int
    """Samples whose offsets or groups make no sense."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """What some files hold, file by file and together."""

    layout: Layout
    files: tuple[_File, ...]
    tally: Tally

    def as_json(self) -> dict[str, Any]:
        """Without a proposal: what to call the data is for the caller to know."""
        return {
            **describe(self.tally),
            "disk_bytes": sum(file.path.stat().st_size for file in self.files),
            "measured": None,
            "columns": [self._column(column) for column in self.layout.columns],
            "files": [
                {
                    "file": str(file.path),
                    "samples": file.tally.num_samples,
                    "bytes": file.tally.num_bytes,
                    "disk_bytes": file.path.stat().st_size,
                }
                for file in self.files
            ],
            "notes": [note for file in self.files for note in _notes(file)],
        }

    def _column(self, column: Column) -> dict[str, Any]:
        shape: list[int | None] | None = list(column.shape) if column.shape is not None else None
        return {
            "name": column.name,
            "kind": column.kind,
            "type": str(column.dtype),
            "shape": [None, *(shape or [])] if column.kind == "flat" else shape,
            "bytes": sum(file.columns[column.name] for file in self.files),
        }


def look_at_files(paths: Sequence[Path], progress: ProgressCallback) -> Looked:
    """Files that are read together: their layouts must agree."""
    layouts = []
    for path in _distinct(paths):
        file = Hdf5File(path)
        layouts.append((path, file.layout))
        file.close()  # shards may be more than a process may have open
    refuse_different(layouts)
    total = sum(layout.num_samples for _, layout in layouts)
    files: list[_File] = []
    together, done = Tally(), 0
    for path, layout in layouts:

        def tell(place: int, done: int = done) -> None:
            progress(Progress("reading sizes", done + place, total))

        looked = _look_at(path, tell)
        files.append(looked)
        together = together.plus(looked.tally)
        done += layout.num_samples
    if not together.num_samples:
        raise DataError(
            f"no sample of `{layouts[0][0]}` has a size of at least 1",
            hint="write the size of each sample into `n`",
        )
    return Looked(layout=layouts[0][1], files=tuple(files), tally=together)


def _look_at(path: Path, tell: Tell) -> _File:
    file = Hdf5File(path)
    counting = _Counting(file)
    tally, place = Tally(), 0
    for sizes in file.blocks(SIZES, counting.block):
        sample_bytes = counting.next_bytes(place, len(sizes))
        tally = tally.with_block(sizes, sample_bytes, file=str(path), first=place)
        place += len(sizes)
        tell(place)
    file.close()
    counting.close()
    return _File(path=path, tally=tally, columns=counting.columns, num_damaged=counting.num_damaged)


class _Counting:
    """The bytes of one sample after another, from the offsets and headers alone."""

    def __init__(self, file: Hdf5File) -> None:
        layout = file.layout
        self.columns = {column.name: 0 for column in layout.columns}
        self.num_damaged = 0
        self.block = _GROUP_BLOCK if layout.is_grouped else _BLOCK
        self._h5py, self._file = open_file(file.path)
        self._rows = [column for column in layout.columns if column.kind == "rows"]
        self._grouped = [column for column in layout.columns if column.kind == "groups"]
        self._flat = [
            (column, self._file[column.name].shape[0], _with_next(file, column, self.block))
            for column in layout.columns
            if column.kind == "flat"
        ]

    def close(self) -> None:
        self._file.close()

    def next_bytes(self, first: int, num: int) -> Ints:
        """Of the next samples; called block after block."""
        found = np.zeros(num, dtype=np.int64)
        is_damaged = np.zeros(num, dtype=bool)
        for column in self._rows:
            self._add(found, column, np.full(num, column.row_bytes))
        for column, num_rows, offsets in self._flat:
            lengths = _lengths(next(offsets), num_rows)
            is_damaged |= lengths < 0
            self._add(found, column, np.maximum(lengths, 0) * column.row_bytes)
        for column in self._grouped:
            each = (self._group_bytes(index, column) for index in range(first, first + num))
            these = np.fromiter(each, dtype=np.int64, count=num)
            is_damaged |= these < 0
            self._add(found, column, np.maximum(these, 0))
        self.num_damaged += int(is_damaged.sum())
        return found

    def _add(self, found: Ints, column: Column, these: Ints) -> None:
        found += these
        self.columns[column.name] += int(these.sum())

    def _group_bytes(self, index: int, column: Column) -> int:
        """-1: it is not there."""
        # h5py's own `[]` takes four times as long, and this is asked for every sample.
        try:
            name = f"{GROUPS}/{index}/{column.name}".encode()
            data = self._h5py.h5d.open(self._file.id, name)
            return int(data.get_space().get_simple_extent_npoints() * column.dtype.itemsize)
        except (KeyError, RuntimeError, OSError, ValueError):
            return -1


def _lengths(offsets: Ints, num_rows: int) -> Ints:
    """Rows of each sample; -1 where they cannot be right."""
    begins, ends = offsets[:-1], offsets[1:]
    is_right = (begins >= 0) & (ends >= begins) & (ends <= num_rows)
    return np.where(is_right, ends - begins, -1)


def _with_next(file: Hdf5File, column: Column, entries: int) -> Iterator[Ints]:
    """The offsets of each block of samples, and the one after them."""
    blocks = file.blocks(column.name + OFFSETS, entries)
    block = next(blocks)
    for following in blocks:
        yield np.append(block, following[:1])
        block = following
    yield block


def _distinct(paths: Sequence[Path]) -> list[Path]:
    """A file that is named twice counts once."""
    return list({path.resolve(): path for path in reversed(paths)}.values())[::-1]


def _notes(file: _File) -> Iterator[str]:
    check = f"`tasuki data check {file.path}"
    if num := file.tally.num_left_out:
        first = file.tally.left_out[0]
        yield (
            f"{_samples(num)} of `{file.path}` {'has' if num == 1 else 'have'} no size of at least "
            f"1 (sample {first.index}: {first.size}) and {'is' if num == 1 else 'are'} left out "
            f"here; {check} --fix` writes a copy without them"
        )
    if num := file.num_damaged:
        yield f"{_samples(num)} of `{file.path}` cannot be found in it; {check}` tells which"


def _samples(num: int) -> str:
    return f"{num:,} sample{'' if num == 1 else 's'}"


def _propose(found: dict[str, list[Path]], looked: Looked) -> dict[str, Any]:
    """Stages over the training data: what is called `val` or `test` is for later."""
    tallies = {file.path.resolve(): file.tally for file in looked.files}
    pairs = [
        (source, path)
        for source, paths in found.items()
        for path in paths
        if any(path is file.path for file in looked.files)
    ]
    pairs = [pair for pair in pairs if pair[1].stem not in _NOT_TRAINED] or pairs
    slices = [
        Slice(
            data=_as_written(source, path),
            path=str(path.absolute()),
            sizes=tallies[path.resolve()].sizes.tolist(),
        )
        for source, path in pairs
    ]
    tally = reduce(Tally.plus, (tallies[path.resolve()] for _, path in pairs))
    together = _join(slices, [path for _, path in pairs], tally)
    # Of all files, not only those to train on: what is validated has to fit the buckets, too.
    return propose(slices, together, choose_uppers(looked.tally))


def _as_written(source: str, path: Path) -> str:
    """As `data:` names it: a folder with splits, else the file."""
    is_found_in_folder = path.stem == _TRAINED and str(path) != str(Path(source))
    return str(path.parent if is_found_in_folder else path)


def _join(slices: Sequence[Slice], paths: Sequence[Path], tally: Tally) -> Slice:
    """All of them as one source: a list, or a pattern where it means exactly these files."""
    sizes = tally.sizes.tolist()
    if len(slices) == 1:
        return replace(slices[0], sizes=sizes)
    folder, suffix = paths[0].parent, paths[0].suffix
    data: str | list[str] = [str(one.data) for one in slices]
    if sorted(folder.glob(f"*{suffix}")) == sorted(paths):
        data = str(folder / f"*{suffix}")
    return Slice(data=data, path=str(folder.absolute()), sizes=sizes)
