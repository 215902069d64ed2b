"""All of one file, a block of consecutive samples at a time, as the bytes they consist of.

For work on whole files (check, merge, split): memory is bounded by the block, however large the
file is, and a sample that cannot be read does not hide its neighbours. Training reads through
dataset.py instead. Whatever the layout, a block is the same: for each column one piece of bytes
and where each sample's begin.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasuki.data.curate.findings import Kind
from tasuki.data.curate.groups import BadSample, SampleGroups
from tasuki.data.hdf5.layout import GROUPS, OFFSETS, Column
from tasuki.data.hdf5.reader import Hdf5File, Ints, open_file
from tasuki.errors import DataError

BLOCK_BYTES = 64 << 20
_MOST_SAMPLES = 1 << 16
"""Of a block, however small they are: some lists are as long as a block."""

_MOST_OPEN = 8
"""HDF5 keeps up to 32 MB of unpacked chunks for each data set of an open file."""
_RECENT: dict[int, Contents] = {}
"""Files with open handles, the one used longest ago first."""

Bools = NDArray[np.bool_]
Stamp = list[int]


def stamp_of(path: Path) -> Stamp | None:
    """Tells whether a file is still the one that was read. None: it is gone."""
    try:
        facts = path.stat()
    except OSError:
        return None
    return [facts.st_size, facts.st_mtime_ns, facts.st_ino]


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """What consecutive samples hold in one column."""

    data: NDArray[np.uint8]
    bounds: Ints
    """Sample i of the block has data[bounds[i]:bounds[i + 1]]."""
    shapes: Sequence[tuple[int, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Samples [begin, end) of a file; a piece per column."""

    begin: int
    end: int
    pieces: tuple[Piece, ...]
    failed: NDArray[np.int8]
    """A `Kind` for each sample that could not be read, else 0. What it holds means nothing."""

    def __len__(self) -> int:
        return self.end - self.begin

    @property
    def num_bytes(self) -> int:
        return sum(piece.data.nbytes for piece in self.pieces)


class Contents:
    """One file: its sizes and offsets in memory, its samples block by block."""

    def __init__(self, path: Path, *, block_bytes: int = BLOCK_BYTES) -> None:
        self.path = path
        self._file = Hdf5File(path)
        self.stamp = stamp_of(path)
        self.layout = self._file.layout
        self.h5py: Any = None
        self._handle: Any = None
        self._groups: SampleGroups | None = None
        found = self.handle.get(GROUPS)
        if found is not None and not hasattr(found, "shape"):
            self._groups = SampleGroups(self.h5py, self.handle, len(self))
        self.columns = self._columns()
        self.sizes = self._file.sizes()
        self.offsets = {
            column.name: np.concatenate(list(self._file.blocks(column.name + OFFSETS)))
            for column in self.columns
            if column.kind == "flat"
        }
        self.bad_offsets = {column: self._judge(column) for column in self.offsets}
        self.unsafe: Bools = np.zeros(len(self), dtype=bool)
        """Samples whose place in the file is not known: they are never read."""
        for bad in self.bad_offsets.values():
            self.unsafe |= bad
        self._block_bytes = block_bytes
        self._ends = np.cumsum(self._plain_bytes())

    def __len__(self) -> int:
        return self.layout.num_samples

    @property
    def handle(self) -> Any:
        """The file, open: only some are at a time."""
        _RECENT.pop(id(self), None)
        _RECENT[id(self)] = self
        if len(_RECENT) > _MOST_OPEN:
            next(iter(_RECENT.values())).close()
        if not self._handle:
            self.h5py, self._handle = open_file(self.path)
            if self._groups is not None:
                self._groups.open_in(self._handle)
        return self._handle

    @property
    def groups(self) -> SampleGroups | None:
        """The samples' groups, in the open file; None where samples are no groups."""
        return self._groups if self.handle else None

    def close(self) -> None:
        """Opens again by itself when it is used."""
        _RECENT.pop(id(self), None)
        self._file.close()
        if self._handle:
            self._handle.close()

    def lengths(self, name: str) -> Ints:
        """Rows of each sample in a flat column; nonsense for unsafe samples."""
        return np.diff(self.offsets[name])

    def length(self, name: str) -> int:
        """Rows of a data set."""
        return int(self.handle[name].shape[0])

    def blocks(self, begin: int = 0, *, avoid: Bools | None = None) -> Iterator[Block]:
        """All samples from `begin` on. Those to avoid come as failed."""
        while begin < len(self):
            block = self.block(begin, len(self), avoid=avoid)
            begin = block.end
            yield block
        self.refuse_changed()
        self.close()

    def block(self, begin: int, stop: int, *, avoid: Bools | None = None) -> Block:
        """As many samples from `begin` on, up to `stop`, as a block may hold; at least one."""
        self.refuse_changed()
        assert self.handle  # counts as open, whatever the columns are read through
        stop = min(stop, begin + _MOST_SAMPLES)
        before = int(self._ends[begin - 1]) if begin else 0
        fits = int(np.searchsorted(self._ends, before + self._block_bytes, side="right"))
        stop = max(begin + 1, min(stop, fits))
        failed = np.zeros(stop - begin, dtype=np.int8)
        failed[self.unsafe[begin:stop]] = Kind.OFFSETS
        if avoid is not None:
            failed[avoid[begin:stop] & (failed == 0)] = Kind.UNREADABLE
        grouped = self._read_groups(begin, stop, failed) if self.groups is not None else []
        end = begin + len(grouped[0].shapes) if grouped else stop
        failed = failed[: end - begin]
        pieces, waiting = [], iter(grouped)
        for column in self.columns:
            is_grouped = column.kind == "groups"
            pieces.append(
                next(waiting) if is_grouped else self._read_column(column, begin, end, failed)
            )
        return Block(begin=begin, end=end, pieces=tuple(pieces), failed=failed)

    def refuse_changed(self) -> None:
        if self.stamp != stamp_of(self.path):
            raise DataError(
                f"`{self.path}` changed while it was read",
                hint="leave it alone until this is done; then run the same command again",
            )

    def why_unreadable(self, index: int) -> str:
        """What reading a sample says that failed before."""
        if self.groups is not None:
            try:
                self.groups.read(index)
            except BadSample as bad:
                return bad.words
        for column in self.columns:
            if column.kind != "groups":
                first, last = self._rows_of(column, index, index + 1)
                try:
                    self._file.read_rows(column.name, first, last, what=f"sample {index}")
                except DataError as error:
                    return error.message
        return "could not be read a moment ago"

    def _columns(self) -> tuple[Column, ...]:
        plain = [column for column in self.layout.columns if column.kind != "groups"]
        grouped = self._groups.columns if self._groups is not None else ()
        return tuple(sorted([*plain, *grouped], key=lambda column: column.name))

    def _judge(self, name: str) -> Bools:
        """Samples that begin or end at an offset that cannot be right.

        Where offsets go back, either of the two may be the wrong one, and a sample beside them may
        have its neighbour's rows.
        """
        offsets = self.offsets[name]
        wrong = (offsets < 0) | (offsets > self.length(name))
        goes_back = (offsets[1:] < offsets[:-1]) & ~wrong[1:] & ~wrong[:-1]
        wrong[1:] |= goes_back
        wrong[:-1] |= goes_back
        bad: Bools = wrong[1:] | wrong[:-1]
        return bad

    def _plain_bytes(self) -> Ints:
        """Of each sample, without what lies in groups."""
        each = np.zeros(len(self), dtype=np.int64)
        for column in self.columns:
            if column.kind == "rows":
                each += column.row_bytes
            elif column.kind == "flat":
                each += np.where(self.unsafe, 0, self.lengths(column.name)) * column.row_bytes
        return each

    def _read_column(self, column: Column, begin: int, end: int, failed: NDArray[np.int8]) -> Piece:
        """Rows or flat; marks in `failed` what could not be read."""
        counts = np.zeros(end - begin, dtype=np.int64)
        parts = []
        for first, last in runs_of(failed == 0):
            for a, b, rows in self._read_range(column, begin + first, begin + last):
                if rows is None:
                    failed[a - begin] = Kind.UNREADABLE
                else:
                    parts.append(rows.reshape(-1).view(np.uint8))
                    counts[a - begin : b - begin] = self._counts(column, a, b)
        data = parts[0] if len(parts) == 1 else np.concatenate([np.empty(0, np.uint8), *parts])
        shape = column.shape or ()
        shapes = (
            [shape] * len(counts)
            if column.kind == "rows"
            else [(count, *shape) for count in counts.tolist()]
        )
        return Piece(data=data, bounds=_bounds(counts * column.row_bytes), shapes=shapes)

    def _counts(self, column: Column, begin: int, end: int) -> Ints | int:
        if column.kind == "rows":
            return 1
        return np.diff(self.offsets[column.name][begin : end + 1])

    def _read_range(
        self, column: Column, begin: int, end: int
    ) -> list[tuple[int, int, NDArray[Any] | None]]:
        """(first sample, end, rows) pieces of a run; a sample that cannot be read has no rows."""
        first, last = self._rows_of(column, begin, end)
        try:
            rows = self._file.read_rows(column.name, first, last, what=f"sample {begin}")
            return [(begin, end, rows)]
        except DataError:
            self.refuse_changed()
            if end - begin == 1:
                return [(begin, end, None)]
            middle = (begin + end) // 2
            return [
                *self._read_range(column, begin, middle),
                *self._read_range(column, middle, end),
            ]

    def _rows_of(self, column: Column, begin: int, end: int) -> tuple[int, int]:
        if column.kind == "rows":
            return begin, end
        offsets = self.offsets[column.name]
        return int(offsets[begin]), int(offsets[end])

    def _read_groups(self, begin: int, stop: int, failed: NDArray[np.int8]) -> list[Piece]:
        """A piece per grouped column, of as many samples as a block may hold."""
        groups = self.groups
        assert groups is not None
        columns = groups.columns
        nothing = [np.empty(0, dtype=column.dtype) for column in columns]
        samples: list[list[NDArray[Any]]] = []
        num_bytes = 0
        for index in range(begin, stop):
            arrays = nothing
            if not failed[index - begin]:
                try:
                    arrays = groups.read(index)
                except BadSample as bad:
                    failed[index - begin] = bad.kind
            more = sum(array.nbytes for array in arrays)
            if samples and num_bytes + more > self._block_bytes:
                break
            num_bytes += more
            samples.append(arrays)
        return [_joined([arrays[at] for arrays in samples]) for at in range(len(columns))]


def close_all() -> None:
    """Leave no file open: whoever reads on opens it again."""
    for contents in list(_RECENT.values()):
        contents.close()


def _joined(arrays: Sequence[NDArray[Any]]) -> Piece:
    parts = [array.reshape(-1).view(np.uint8) for array in arrays]
    return Piece(
        data=np.concatenate(parts),
        bounds=_bounds(np.array([part.size for part in parts], dtype=np.int64)),
        shapes=[array.shape for array in arrays],
    )


def _bounds(counts: Ints) -> Ints:
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(counts)])


def runs_of(chosen: Bools) -> list[tuple[int, int]]:
    """[begin, end) of each run of true values."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], chosen, [False]]).astype(np.int8)))
    return [(int(a), int(b)) for a, b in edges.reshape(-1, 2)]
