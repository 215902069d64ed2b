"""Files that are written once, with a checksum per chunk, and checked whenever they are read.

A record stands in the manifest; damage is found before a byte is used, and its place is named. A
chunk at a time, so that checking a file of many gigabytes needs 16 MiB.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasuki.errors import DamagedCheckpoint
from tasuki.runs.atomic import FILE_MODE, reserve, translated, write_all

CHUNK_BYTES = 16 * 2**20
PAGE_BYTES = 4096
"""What lies on such boundaries, in memory and in the file, can be written past the cache."""
_WORTH_DIRECT = _DIRECT_BYTES = 4 * 2**20
_NO_DIRECT = {errno.EINVAL, errno.EOPNOTSUPP}
_READERS = 2
_PIECE_BYTES = 1 << 20
"""Read at once: its checksum is taken while it is still in the processor's cache."""
_HINT = "use an older checkpoint; this one cannot be trusted"
# These say that a file is not there as it was written. Any other error (EIO, ESTALE, EACCES) may
# pass: to call it damage would let a run fall back behind a good checkpoint.
_NOT_THERE = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRecord:
    """What a file was when it was written."""

    name: str
    size: int
    chunk_bytes: int = CHUNK_BYTES
    crc32: tuple[int, ...]
    """Of each chunk; the last one may be shorter."""

    def __post_init__(self) -> None:
        if self.size < 0 or self.chunk_bytes < 1:
            raise DamagedCheckpoint(f"the record of {self.name!r} has impossible sizes")
        if len(self.crc32) != -(-self.size // self.chunk_bytes):
            raise DamagedCheckpoint(f"the record of {self.name!r} lacks checksums")

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "size": self.size,
            "chunk_bytes": self.chunk_bytes,
            "crc32": list(self.crc32),
        }

    @classmethod
    def from_json(cls, value: object) -> FileRecord:
        """Read a record; also one that another rank sent."""
        if not isinstance(value, dict):
            raise DamagedCheckpoint("a file record is no object")
        name, sums = value.get("name"), value.get("crc32")
        sizes = [value.get("size"), value.get("chunk_bytes")]
        if not isinstance(name, str) or not isinstance(sums, list):
            raise DamagedCheckpoint("a file record lacks its name or checksums")
        if not all(type(number) is int for number in [*sizes, *sums]):
            raise DamagedCheckpoint(f"the record of {name[:80]!r} holds no numbers")
        if sizes[1] < PAGE_BYTES:  # type: ignore[operator]
            raise DamagedCheckpoint(f"the record of {name[:80]!r} has impossibly small chunks")
        return cls(name=name, size=sizes[0], chunk_bytes=sizes[1], crc32=tuple(sums))  # type: ignore[arg-type]


Piece = bytes | bytearray | memoryview
"""Bytes of a file, in the order in which they are written."""


def write_file(path: Path, data: bytes) -> FileRecord:
    """Create a file, durably but for its name (fsync the folder for that). Never overwrites."""
    return write_pieces(path, [data])


def write_pieces(path: Path, pieces: Sequence[Piece]) -> FileRecord:
    """As `write_file`, from several stretches of memory: nothing is gathered first."""
    views = [memoryview(piece) for piece in pieces]
    size, sums = sum(len(view) for view in views), _RollingSums(CHUNK_BYTES)
    with _created(path, size) as fd:
        for view in views:
            for start in range(0, len(view), CHUNK_BYTES):
                piece = view[start : start + CHUNK_BYTES]
                sums.add(piece)
                write_all(fd, piece)
    return FileRecord(name=path.name, size=size, crc32=sums.finish())


def write_image(path: Path, image: memoryview) -> FileRecord:
    """As `write_file`, of a large file that lies in memory on the boundary of a page.

    Past the system's cache (O_DIRECT) where that is possible: of 600 MB that takes 0.03 s of CPU
    time instead of 0.4 to 2, which the training beside it gets. Checksums are taken in between, not
    meanwhile: both read memory as fast as they can, and so does training.
    """
    if len(image) < _WORTH_DIRECT:
        return write_pieces(path, [image])
    sums = _RollingSums(CHUNK_BYTES)
    with _created(path, len(image)) as fd:
        left = image[_write_direct(fd, image, sums) :]
        sums.add(left)
        write_all(fd, left)
    return FileRecord(name=path.name, size=len(image), crc32=sums.finish())


def _write_direct(fd: int, image: memoryview, sums: _RollingSums) -> int:
    """Whole pages past the cache; how many bytes that were. What is left goes the usual way."""
    flags = fcntl.fcntl(fd, fcntl.F_GETFL)
    whole = len(image) // PAGE_BYTES * PAGE_BYTES
    at = 0
    try:
        fcntl.fcntl(fd, fcntl.F_SETFL, flags | os.O_DIRECT)
    except OSError as error:
        if error.errno not in _NO_DIRECT:
            raise
        return 0
    try:
        while at < whole:
            count = os.write(fd, image[at : min(at + _DIRECT_BYTES, whole)])
            sums.add(image[at : at + count])
            at += count
            if count % PAGE_BYTES:
                break  # a short write: the rest would not lie on pages any more
    except OSError as error:
        if error.errno not in _NO_DIRECT:
            raise
    finally:
        fcntl.fcntl(fd, fcntl.F_SETFL, flags)
    return at


@contextlib.contextmanager
def _created(path: Path, size: int) -> Iterator[int]:
    """A new file that is durable at the end, or not there."""
    with translated(path, need=size):
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)
        try:
            try:
                reserve(fd, size)
                yield fd
                os.fsync(fd)
            finally:
                os.close(fd)
        except BaseException:
            # After a failed write or fsync nobody knows what the disk holds: a new try, a new file.
            with contextlib.suppress(OSError):
                path.unlink()
            raise


class _RollingSums:
    """The crc32 of each chunk of a stream, however it is cut when it comes."""

    def __init__(self, chunk_bytes: int) -> None:
        self._chunk_bytes = chunk_bytes
        self._done: list[int] = []
        self._crc = self._filled = 0

    def add(self, piece: memoryview) -> None:
        while piece:
            part = piece[: self._chunk_bytes - self._filled]
            self._crc = zlib.crc32(part, self._crc)
            self._filled += len(part)
            piece = piece[len(part) :]
            if self._filled == self._chunk_bytes:
                self._end_chunk()

    def _end_chunk(self) -> None:
        self._done.append(self._crc)
        self._crc = self._filled = 0

    def finish(self) -> tuple[int, ...]:
        if self._filled:
            self._end_chunk()
        return tuple(self._done)


def fill(path: Path, fd: int, memory: Sequence[memoryview], record: FileRecord | None) -> None:
    """Read an open file from its start into stretches of memory, which it fills exactly.

    With a record every chunk is checked as it comes. Chunks are read by two threads: copying and
    checksums take about as long as each other, and both leave Python's lock.
    """
    size = os.fstat(fd).st_size
    if record is not None:
        _compare_sizes(path, size, record.size)
    wanted = sum(len(view) for view in memory)
    if wanted != size:
        raise damage(path, f"has {size} bytes, but {wanted} are expected")
    step = record.chunk_bytes if record is not None else CHUNK_BYTES
    jobs = [_Chunk(number, number * step, views) for number, views in enumerate(_cut(memory, step))]
    if len(jobs) < 3:
        for job in jobs:
            job.read(path, fd, record)
        return
    with ThreadPoolExecutor(_READERS, thread_name_prefix="tasuki-read") as pool:
        for done in [pool.submit(job.read, path, fd, record) for job in jobs]:
            done.result()


@dataclass(frozen=True, slots=True)
class _Chunk:
    number: int
    start: int
    views: list[memoryview]

    def read(self, path: Path, fd: int, record: FileRecord | None) -> None:
        at, crc = self.start, 0
        for view in self.views:
            left = view
            while left:
                piece = left[:_PIECE_BYTES]
                count = os.preadv(fd, [piece], at)
                if not count:
                    raise damage(path, f"ends after {at} bytes")
                if record is not None:
                    crc = zlib.crc32(piece[:count], crc)
                at, left = at + count, left[count:]
        if record is not None and crc != record.crc32[self.number]:
            raise _damaged_between(path, self.start, at)


def _cut(memory: Sequence[memoryview], step: int) -> Iterator[list[memoryview]]:
    """Stretches of memory as chunks of a file."""
    views: list[memoryview] = []
    room = step
    for whole in memory:
        left = whole
        while left:
            piece = left[:room]
            views.append(piece)
            left, room = left[len(piece) :], room - len(piece)
            if not room:
                yield views
                views, room = [], step
    if views:
        yield views


def read_file(path: Path, *, record: FileRecord | None = None, limit: int | None = None) -> bytes:
    """The whole file, checked against its record if there is one."""
    with opened(path) as fd:
        size = os.fstat(fd).st_size
        if limit is not None and size > limit:
            raise damage(path, f"has {size} bytes; at most {limit} are expected")
        with os.fdopen(fd, "rb", buffering=0, closefd=False) as file:
            data = file.readall()
    if record is not None:
        _compare_sizes(path, len(data), record.size)
        view = memoryview(data)
        for number, start in enumerate(range(0, record.size, record.chunk_bytes)):
            _compare_sums(path, number, view[start : start + record.chunk_bytes], record)
    return data


def check_file(path: Path, record: FileRecord) -> None:
    """Read the whole file and compare it with its record."""
    with opened(path) as fd:
        _compare_sizes(path, os.fstat(fd).st_size, record.size)
        for number in range(len(record.crc32)):
            expected = min(record.chunk_bytes, record.size - number * record.chunk_bytes)
            _compare_sums(path, number, _read_up_to(fd, expected), record)


def check_size(path: Path, record: FileRecord) -> None:
    """The cheap check: it is there, a plain file, and as long as it was."""
    with opened(path) as fd:
        _compare_sizes(path, os.fstat(fd).st_size, record.size)


def forget(path: Path) -> None:
    """Let the system drop its copy of a file that is on disk, so that the next read goes there."""
    with opened(path) as fd:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)


def damage(path: Path, words: str) -> DamagedCheckpoint:
    """The error that names what is wrong with which file."""
    return DamagedCheckpoint(f"{path} {words}", hint=_HINT)


@contextlib.contextmanager
def opened(path: Path) -> Iterator[int]:
    """A plain file, never a link, a pipe or a device."""
    with translated(path):
        try:
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            fd = os.open(path, flags)
        except OSError as error:
            if error.errno in _NOT_THERE:
                raise damage(path, "is missing or a link") from error
            raise
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise damage(path, "is not a plain file")
            yield fd
        finally:
            os.close(fd)


def _compare_sums(path: Path, number: int, chunk: bytes | memoryview, record: FileRecord) -> None:
    if zlib.crc32(chunk) != record.crc32[number]:
        start = number * record.chunk_bytes
        raise _damaged_between(path, start, start + len(chunk))


def _damaged_between(path: Path, start: int, stop: int) -> DamagedCheckpoint:
    return damage(path, f"is damaged between bytes {start} and {stop}")


def _read_up_to(fd: int, count: int) -> bytes:
    """A single `read` may be short, and ends at the end of the file."""
    pieces = []
    while count and (piece := os.read(fd, min(count, CHUNK_BYTES))):
        pieces.append(piece)
        count -= len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _compare_sizes(path: Path, found: int, expected: int) -> None:
    if found != expected:
        raise damage(path, f"has {found} bytes, but {expected} were written")
