"""A file of samples as it is laid out before its values are there, and the filling of it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasuki.data.curate.contents import Block, Bools, Contents, runs_of
from tasuki.data.curate.extras import Extra, copy_extras, copy_sample_extras
from tasuki.data.curate.talk import OnProgress
from tasuki.data.hdf5.layout import GROUPS, OFFSETS, SIZES, Column
from tasuki.data.hdf5.reader import Ints, open_file

Picks = Sequence[tuple[Contents, Bools]]
"""The samples of an output: files in order, and which of their samples."""

_FILE_BYTES = 4 << 10
"""What HDF5 needs for itself."""


def total_bytes(picks: Picks) -> int:
    """What an output takes on the disk, about: groups as in the source, which may be compressed."""
    needed = _FILE_BYTES
    for source, chosen in picks:
        num = int(chosen.sum())
        if source.groups is not None:
            needed += round(source.path.stat().st_size * num / len(source))
            continue
        needed += num * 8
        for column in source.columns:
            needed += _bytes_of(column, [(source, chosen)])
            needed += num * 8 if column.kind == "flat" else 0
    return needed


def lay_out(
    path: Path, picks: Picks, extras: Sequence[Extra], *, on_progress: OnProgress
) -> list[Extra]:
    """Make the whole file but for the values of its columns; the extras that could not be copied.

    The same picks give the same bytes: no times are noted.
    """
    source = picks[0][0]
    assert source.handle  # it was closed, perhaps
    path.unlink(missing_ok=True)
    file = _create(source.h5py, path)
    with file:
        new = _New(source.h5py)
        new.filled(file.id, SIZES, np.concatenate([one.sizes[chosen] for one, chosen in picks]))
        num = sum(int(chosen.sum()) for _, chosen in picks)
        for column in source.columns:
            if column.kind == "rows":
                new.empty(file.id, column, (num, *(column.shape or ())))
            elif column.kind == "flat":
                lengths = [one.lengths(column.name)[chosen] for one, chosen in picks]
                offsets = np.concatenate([[0], np.cumsum(np.concatenate(lengths))])
                new.filled(file.id, column.name + OFFSETS, offsets)
                new.empty(file.id, column, (int(offsets[-1]), *(column.shape or ())))
        if source.groups is not None:
            _lay_out_groups(file, picks, new, on_progress)
        failed = copy_extras(source, file, extras)
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
    return failed


def _lay_out_groups(file: Any, picks: Picks, new: _New, on_progress: OnProgress) -> None:
    parent = new.group(file.id, GROUPS)
    total = sum(int(chosen.sum()) for _, chosen in picks)
    number = 0
    for source, chosen in picks:
        groups = source.groups
        assert groups is not None
        for index in np.flatnonzero(chosen).tolist():
            group = new.group(parent, str(number))
            shapes, has_more = groups.shapes(index)
            for column, shape in zip(groups.columns, shapes, strict=True):
                new.empty(group, column, shape)
            if has_more:
                copy_sample_extras(source, index, file[f"{GROUPS}/{number}"])
            number += 1
            on_progress("laying out", number, total)


def _create(h5py: Any, path: Path) -> Any:
    creation = h5py.h5p.create(h5py.h5p.FILE_CREATE)
    creation.set_obj_track_times(False)
    access = h5py.h5p.create(h5py.h5p.FILE_ACCESS)
    # Groups of HDF5 1.8 take half the room of the earlier ones; older libraries are not in use.
    access.set_libver_bounds(h5py.h5f.LIBVER_V18, h5py.h5f.LIBVER_V18)
    return h5py.File(h5py.h5f.create(os.fsencode(path), h5py.h5f.ACC_EXCL, creation, access))


class _New:
    """Makes data sets and groups that are the same in every run."""

    def __init__(self, h5py: Any) -> None:
        self._h5py = h5py
        self._plain = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        self._plain.set_layout(h5py.h5d.CONTIGUOUS)
        self._plain.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
        self._plain.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
        self._plain.set_obj_track_times(False)
        self._group = h5py.h5p.create(h5py.h5p.GROUP_CREATE)
        self._group.set_obj_track_times(False)

    def empty(self, parent: Any, column: Column, shape: tuple[int, ...]) -> Any:
        """A data set with its place in the file, and nothing written there."""
        # The code, not the type: without what h5py notes about the source's own type.
        kind = self._h5py.h5t.py_create(np.dtype(column.dtype.str), logical=True)
        space = self._h5py.h5s.create_simple(shape)
        return self._h5py.h5d.create(parent, column.name.encode(), kind, space, self._plain)

    def filled(self, parent: Any, name: str, values: Ints) -> None:
        column = Column(name=name, kind="rows", dtype=np.dtype(np.int64), shape=())
        data = self.empty(parent, column, values.shape)
        everything = self._h5py.h5s.ALL
        data.write(everything, everything, np.ascontiguousarray(values, dtype=np.int64))

    def group(self, parent: Any, name: str) -> Any:
        return self._h5py.h5g.create(parent, name.encode(), gcpl=self._group)


class Target:
    """A file that was laid out, while it is filled in the order of its samples."""

    def __init__(self, path: Path, columns: Sequence[Column], *, picks_done: Picks) -> None:
        """`picks_done`: those whose values are there already."""
        self._columns = columns
        self._h5py, self._file = open_file(path)
        self._begins = [
            None if column.kind == "groups" else self._file[column.name].id.get_offset()
            for column in columns
        ]
        self._done = [_bytes_of(column, picks_done) for column in columns]
        self._num_done = sum(int(chosen.sum()) for _, chosen in picks_done)
        self._fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)

    def __enter__(self) -> Target:
        return self

    def __exit__(
        self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None
    ) -> None:
        self._file.close()
        os.close(self._fd)

    def write(self, block: Block, chosen: Bools) -> None:
        """The chosen samples of a block come next."""
        runs = runs_of(chosen)
        for number, (column, piece) in enumerate(zip(self._columns, block.pieces, strict=True)):
            if column.kind == "groups":
                for place, i in enumerate(np.flatnonzero(chosen).tolist()):
                    data = piece.data[piece.bounds[i] : piece.bounds[i + 1]]
                    self._put(data, self._place(column, self._num_done + place))
                continue
            parts = [piece.data[piece.bounds[a] : piece.bounds[b]] for a, b in runs]
            data = parts[0] if len(parts) == 1 else np.concatenate(parts)
            begin = self._begins[number]
            self._put(data, None if begin is None else begin + self._done[number])
            self._done[number] += data.nbytes
        self._num_done += int(chosen.sum())

    def sync(self) -> None:
        os.fsync(self._fd)

    def _place(self, column: Column, number: int) -> int | None:
        name = f"{GROUPS}/{number}/{column.name}".encode()
        offset: int | None = self._h5py.h5d.open(self._file.id, name).get_offset()
        return offset

    def _put(self, data: NDArray[np.uint8], at: int | None) -> None:
        view = data.data
        assert at is not None or not len(view)
        done = 0
        while done < len(view):
            assert at is not None
            done += os.pwrite(self._fd, view[done:], at + done)


def _bytes_of(column: Column, picks: Picks) -> int:
    if column.kind == "flat":
        rows = sum(int(source.lengths(column.name)[chosen].sum()) for source, chosen in picks)
    else:
        rows = sum(int(chosen.sum()) for _, chosen in picks)
    return rows * column.row_bytes
