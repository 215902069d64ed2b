"""Read samples of one HDF5 file: only those asked for, along the file's chunks, in any process.

A file is opened when a process first reads from it, and never handed on: handles are closed before
a fork and left out of pickles, since HDF5's state does not survive either. Where a data set lies in
one plain piece, its rows are read by `pread`, past HDF5: six times as fast, and a file that shrinks
meanwhile is an error and not a SIGBUS, as it would be with a memory map.
"""

from __future__ import annotations

import os
import resource
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasuki.data.hdf5.layout import GROUPS, OFFSETS, SIZES, Column, Layout, read_layout
from tasuki.errors import DataError, TasukiError

Arrays = dict[str, NDArray[Any]]
Ints = NDArray[np.int64]

BLOCK = 1 << 20
"""Sizes and offsets are streamed in so many entries."""
KEPT = 1 << 22
"""Sizes and offsets of up to so many samples are kept in memory (32 MB each)."""
_CHUNK_CACHE = 128 << 20
"""Unpacked chunks of each data set that a process keeps at the most; taken as they are read."""
_CACHE_SLOTS = 10007
_ALIGNED = 64


class Hdf5File:
    """One file of samples."""

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        self._stamp: tuple[int, int, int] | None = None
        self._opened: _Opened | None = None
        with _LOCK:
            self.layout: Layout = self._open().layout

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}

    def __len__(self) -> int:
        return self.layout.num_samples

    def read(self, indices: Sequence[int] | Ints) -> list[Arrays]:
        """These samples, in this order; each array is the sample's own memory or a row of it."""
        wanted = self._checked(indices)
        samples: list[Arrays] = [{} for _ in wanted]
        with _LOCK:
            opened = self._open()
            for column in self.layout.columns:
                for sample, value in zip(samples, opened.read(column, wanted), strict=True):
                    sample[column.name] = value
        return samples

    def read_stacked(self, indices: Sequence[int] | Ints) -> Arrays | None:
        """The same as one array per column, without a further copy; None where shapes differ."""
        wanted = self._checked(indices)
        stacked = {}
        with _LOCK:
            opened = self._open()
            for column in self.layout.columns:
                value = opened.read_stacked(column, wanted)
                if value is None:
                    return None
                stacked[column.name] = value
        return stacked

    def sizes(self) -> Ints:
        """The size of every sample."""
        return np.concatenate(list(self.blocks(SIZES)))

    def sizes_at(self, indices: Sequence[int] | Ints) -> Ints:
        """The sizes of these samples."""
        with _LOCK:
            return self._open().numbers_at(SIZES, self._checked(indices))

    def numbers(self, name: str) -> NDArray[Any]:
        """A one-dimensional data set of one number per sample, of whatever type."""
        return self.read_rows(name, 0, len(self))

    def blocks(self, name: str, entries: int = BLOCK) -> Iterator[Ints]:
        """A one-dimensional data set of whole numbers, piece by piece."""
        with _LOCK:
            length = self._open().length(name)
        for begin in range(0, length, entries):
            with _LOCK:
                block = self._open().slice(name, begin, begin + entries)
            yield block

    def read_rows(self, name: str, begin: int, end: int, *, what: str = "") -> NDArray[Any]:
        """Rows [begin, end) of a data set, in one read: for those who go through all of a file."""
        with _LOCK:
            return self._open().rows(name, begin, end, what)

    def counts(self, name: str) -> Ints:
        """A number per sample: the rows of a flat data set, or the entries of one that has S."""
        column = self.layout.column(name)
        if name == SIZES:
            return self.sizes()
        if column is not None and column.kind == "flat":
            return np.diff(np.concatenate(list(self.blocks(name + OFFSETS))))
        is_whole = column is not None and column.dtype.kind in "iu"
        if is_whole and column is not None and column.kind == "rows" and column.shape == ():
            return np.concatenate(list(self.blocks(name)))
        raise DataError(
            f"`{self.path}` has no number per sample called `{name}`",
            hint="name a flat data set (its rows count), or one with a whole number per sample",
        )

    def close(self) -> None:
        with _LOCK:
            if self._opened is not None:
                self._opened.close()
                self._opened = None

    def _open(self) -> _Opened:
        if self._opened is None or self._opened.is_closed:
            self._opened = _Opened(self.path)
            if self._stamp is None:
                self._stamp = self._opened.stamp
        if self._stamp != _stamp_of(self.path):
            raise DataError(
                f"`{self.path}` changed while it was read",
                hint="leave data alone while a run uses them; for other data begin a new run "
                "(`--new`)",
            )
        return self._opened

    def _checked(self, indices: Sequence[int] | Ints) -> Ints:
        wanted = np.asarray(indices, dtype=np.int64)
        if wanted.size and (wanted.min() < 0 or wanted.max() >= len(self)):
            raise IndexError(
                f"`{self.path}` has {len(self)} samples: {wanted.min()}, {wanted.max()}"
            )
        return wanted


def _stamp_of(path: Path) -> tuple[int, int, int]:
    try:
        facts = path.stat()
    except OSError as error:
        raise DataError(
            f"data `{path}` cannot be opened: {error.strerror}",
            hint="check `data:` in the spec; relative paths are relative to the spec's folder",
        ) from error
    return (facts.st_size, facts.st_mtime_ns, facts.st_ino)


class _Opened:
    """An open file in this process, and what is kept about it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.stamp = _stamp_of(path)
        self._h5py, self._file = open_file(path)
        try:
            self.layout = read_layout(self._file, path)
        except BaseException as error:
            self._file.close()
            if isinstance(error, TasukiError) or not isinstance(error, Exception):
                raise
            raise _damaged(path, error) from error
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            self._file.close()
            raise DataError(f"`{path}` cannot be opened: {error.strerror}") from error
        self._sets: dict[str, _Set] = {}
        self._kept: dict[str, Ints] = {}
        _keep_few_open(self)

    @property
    def is_closed(self) -> bool:
        return self._file is None

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            os.close(self._fd)
            self._file = None

    def __del__(self) -> None:
        if getattr(self, "_file", None) is not None and hasattr(self, "_fd"):
            self.close()

    def length(self, name: str) -> int:
        return int(self._set(name).shape[0])

    def slice(self, name: str, begin: int, end: int) -> Ints:
        data = self._set(name)
        end = min(end, data.shape[0])
        out = np.empty((end - begin, *data.shape[1:]), dtype=data.dtype)
        self._into(data, begin, end, out, "")
        return out.astype(np.int64, copy=False)

    def rows(self, name: str, begin: int, end: int, what: str) -> NDArray[Any]:
        data = self._set(name)
        out = np.empty((end - begin, *data.shape[1:]), dtype=data.dtype)
        self._into(data, begin, end, out, what)
        return out

    def read(self, column: Column, wanted: Ints) -> Sequence[NDArray[Any]]:
        if column.kind == "rows":
            return list(self._rows(column, wanted))
        if column.kind == "flat":
            return self._flat(column, *self._bounds(column, wanted), wanted)
        return [self._grouped(column, int(index)) for index in wanted]

    def read_stacked(self, column: Column, wanted: Ints) -> NDArray[Any] | None:
        """In memory that is aligned as torch's own, since numbers may depend on that."""
        if column.kind == "rows":
            return self._rows(column, wanted)
        if column.kind == "flat":
            begins, ends = self._bounds(column, wanted)
            lengths = ends - begins
            if wanted.size and (lengths == lengths[0]).all():
                shape = (len(wanted), int(lengths[0]), *(column.shape or ()))
                out = aligned_empty(shape, column.dtype)
                self._flat_into(column, begins, ends, wanted, list(out))
                return out
        return None

    def _rows(self, column: Column, wanted: Ints) -> NDArray[Any]:
        data = self._set(column.name)
        out = aligned_empty((len(wanted), *data.shape[1:]), data.dtype)
        # Ascending: samples of one chunk follow each other, so each chunk is unpacked once.
        for place in np.argsort(wanted, kind="stable").tolist():
            index = int(wanted[place])
            self._into(data, index, index + 1, out[place : place + 1], f"sample {index}")
        return out

    def _flat(
        self, column: Column, begins: Ints, ends: Ints, wanted: Ints
    ) -> Sequence[NDArray[Any]]:
        out = [
            np.empty((int(length), *(column.shape or ())), dtype=column.dtype)
            for length in ends - begins
        ]
        self._flat_into(column, begins, ends, wanted, out)
        return out

    def _flat_into(
        self, column: Column, begins: Ints, ends: Ints, wanted: Ints, out: Sequence[NDArray[Any]]
    ) -> None:
        data = self._set(column.name)
        for place in np.argsort(wanted, kind="stable").tolist():
            begin, end = int(begins[place]), int(ends[place])
            if end > begin:
                self._into(data, begin, end, out[place], f"sample {wanted[place]}")

    def _bounds(self, column: Column, wanted: Ints) -> tuple[Ints, Ints]:
        name = column.name + OFFSETS
        begins, ends = self.numbers_at(name, wanted), self.numbers_at(name, wanted + 1)
        bad = np.flatnonzero((begins < 0) | (ends < begins) | (ends > self.length(column.name)))
        if bad.size:
            at = int(bad[0])
            raise DataError(
                f"`{name}` of `{self.path}` gives sample {wanted[at]} the rows {begins[at]} to "
                f"{ends[at]} of {self.length(column.name)}",
                hint=f"look at the file with `tasuki data check {self.path}`",
            )
        return begins, ends

    def numbers_at(self, name: str, places: Ints) -> Ints:
        """Entries of sizes or offsets: all of them are kept where they are few."""
        if name not in self._kept and self.length(name) <= KEPT:
            self._kept[name] = self.slice(name, 0, self.length(name))
        if name in self._kept:
            return self._kept[name][places]
        found = [self.slice(name, place, place + 1) for place in places.tolist()]
        return np.concatenate(found) if found else np.empty(0, dtype=np.int64)

    def _grouped(self, column: Column, index: int) -> NDArray[Any]:
        try:
            # HDF5's own calls: h5py's `[]` takes twice as long.
            name = f"{GROUPS}/{index}/{column.name}".encode()
            data = self._h5py.h5d.open(self._file.id, name)
            if data.dtype.newbyteorder("=") == column.dtype:
                out = np.empty(data.shape, dtype=column.dtype)
                if out.size:
                    data.read(self._h5py.h5s.ALL, self._h5py.h5s.ALL, out)
                return out
        except (OSError, KeyError, RuntimeError, TypeError, ValueError) as error:
            raise self._unreadable(column.name, f"sample {index}", error) from error
        raise DataError(
            f"`{column.name}` of sample {index} of `{self.path}` is {data.dtype}, that of sample 0 "
            f"is {column.dtype}",
            hint="store every sample with the same types",
        )

    def _into(self, data: _Set, begin: int, end: int, out: NDArray[Any], what: str) -> None:
        """Rows [begin, end) into an array of this shape and type."""
        try:
            if data.offset is not None:
                self._pread(data, begin, end, out)
            else:
                data.read(begin, end, out)
        except (OSError, RuntimeError, ValueError) as error:
            raise self._unreadable(data.name, what or f"entry {begin}", error) from error

    def _pread(self, data: _Set, begin: int, end: int, out: NDArray[Any]) -> None:
        assert data.offset is not None
        view = out.reshape(-1).view(np.uint8).data
        at, done = data.offset + begin * data.row_bytes, 0
        while done < len(view):
            got = os.preadv(self._fd, [view[done:]], at + done)
            if got == 0:
                raise OSError("the file ends before the data do")
            done += got
        assert done == (end - begin) * data.row_bytes

    def _unreadable(self, name: str, what: str, error: Exception) -> DataError:
        return DataError(
            f"{what} of `{self.path}` cannot be read (`{name}`): {error}",
            hint=f"the file may be damaged: `tasuki data check {self.path}` finds all such samples",
        )

    def _set(self, name: str) -> _Set:
        if name not in self._sets:
            try:
                self._sets[name] = _Set(self._h5py, self._file, name)
            except Exception as error:
                raise _damaged(self.path, error) from error
        return self._sets[name]


class _Set:
    """One data set, opened by HDF5's own calls: h5py's `[]` costs 50 µs more per read."""

    def __init__(self, h5py: Any, file: Any, name: str) -> None:
        self.name = name
        chunks, dtype = file[name].chunks, file[name].dtype
        access = h5py.h5p.create(h5py.h5p.DATASET_ACCESS)
        chunk = int(np.prod(chunks or (0,))) * dtype.itemsize
        access.set_chunk_cache(_CACHE_SLOTS, max(_CHUNK_CACHE, 4 * chunk), 0.75)
        # No other handle may be open: HDF5 would share it, and not look at this access list.
        self._id = h5py.h5d.open(file.id, name.encode(), access)
        stored = h5py.Dataset(self._id)
        self._simple: Callable[..., Any] = h5py.h5s.create_simple
        self.shape: tuple[int, ...] = stored.shape
        self.dtype = stored.dtype.newbyteorder("=")
        self.row_bytes = self.dtype.itemsize * int(np.prod(self.shape[1:], dtype=np.int64))
        is_plain = self._is_plain(h5py, file, stored)
        self.offset: int | None = self._id.get_offset() if is_plain else None
        self._space = self._id.get_space()

    def _is_plain(self, h5py: Any, file: Any, stored: Any) -> bool:
        """In one piece of this very file, as numpy would hold it?"""
        # Of rows never written the offset is undefined, but behind a user block not None.
        is_here = self._id.get_space_status() == h5py.h5d.SPACE_STATUS_ALLOCATED
        is_here = is_here and self._id.get_create_plist().get_layout() == h5py.h5d.CONTIGUOUS
        # A link may lead into another file.
        places = {h5py.h5o.get_info(one.id).fileno for one in (stored, file)}
        # 12-bit numbers or bfloat16 lie in the file otherwise than numpy holds them.
        is_alike = self._id.get_type().equal(h5py.h5t.py_create(stored.dtype))
        is_alike = is_alike and stored.dtype.isnative and stored.dtype.kind != "b"
        return is_here and is_alike and not stored.external and len(places) == 1

    def read(self, begin: int, end: int, out: NDArray[Any]) -> None:
        rest = self.shape[1:]
        self._space.select_hyperslab((begin, *(0 for _ in rest)), (end - begin, *rest))
        self._id.read(self._simple((end - begin, *rest)), self._space, out)


def aligned_empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Aligned to 64 bytes as torch does, numpy only to 16: sums may be in another order."""
    num_bytes = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
    raw = np.empty(num_bytes + _ALIGNED, dtype=np.uint8)
    begin = -raw.ctypes.data % _ALIGNED
    return raw[begin : begin + num_bytes].view(dtype).reshape(shape)


def _damaged(path: Path, error: Exception) -> DataError:
    words = str(error.args[0] if error.args else error)
    return DataError(
        f"`{path}` is damaged: {words}",
        hint="make it again or fetch it again; `tasuki data check` says which samples can be read",
    )


def open_file(path: Path, mode: str = "r") -> tuple[Any, Any]:
    """(h5py, the open file), or a DataError that says what is wrong with the file."""
    try:
        import h5py
    except ImportError as error:
        raise DataError(
            f"`{path}` is an HDF5 file, and h5py is not installed",
            hint='pip install "tasuki[hdf5]"',
        ) from error
    if mode == "r" and _stamp_of(path)[0] == 0:
        raise DataError(f"`{path}` is an empty file", hint="write it again: it has no bytes at all")
    try:
        return h5py, h5py.File(path, mode, locking="best-effort")
    except (OSError, RuntimeError) as error:
        words = str(error).replace("Unable to synchronously open file", "").strip(" ()")
        raise DataError(
            f"`{path}` cannot be opened as an HDF5 file: {words}",
            hint="is it whole? An interrupted copy is not, nor is a file still being written",
        ) from error


_OPEN: list[weakref.ref[_Opened]] = []
"""Oldest first."""


def _keep_few_open(opened: _Opened) -> None:
    """A data set of a thousand files must not use up the process's descriptors: two per file."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = max(8, min(soft, 4096) // 8)
    _OPEN[:] = [known for known in _OPEN if known() is not None]
    while len(_OPEN) >= most:
        oldest = _OPEN.pop(0)()
        if oldest is not None:
            oldest.close()
    _OPEN.append(weakref.ref(opened))


def _before_fork() -> None:
    """HDF5 shares its files' state with a forked child, which would then read through it."""
    _LOCK.acquire()
    while _OPEN:
        opened = _OPEN.pop()()
        if opened is not None:
            opened.close()


def _after_fork_in_child() -> None:
    global _LOCK  # noqa: PLW0603 (the child has one thread; the lock is its parent's)
    _LOCK = threading.RLock()


def _after_fork_in_parent() -> None:
    _LOCK.release()


_LOCK = threading.RLock()
"""One thread must not close what another reads, nor choose its rows; HDF5 itself has such one."""
os.register_at_fork(
    before=_before_fork,
    after_in_parent=_after_fork_in_parent,
    after_in_child=_after_fork_in_child,
)
