"""Everything that is wrong with a checkpoint, file by file.

`verify` stops at the first damage, since a resume needs no more; a person who asks wants to know
all of it, and how far the reading is. Both come to the same verdict (tests hold them together).
Needs no torch.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tasuki.checkpoint.manifest import (
    MANIFEST_NAME,
    MAX_MANIFEST_BYTES,
    Manifest,
    parse_manifest,
)
from tasuki.checkpoint.records import FileRecord, check_size, forget, opened, read_file
from tasuki.checkpoint.retention import QUARANTINE
from tasuki.checkpoint.verify import frozen_folder, read_manifest
from tasuki.errors import DamagedCheckpoint, NewerFormat, StoreError
from tasuki.runs.atomic import translated

_READ_BYTES = 16 * 2**20
_SHOWN_STRETCHES = 3

OnBytes = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Finding:
    """What is wrong with a file."""

    file: str
    words: str


@dataclass(frozen=True, slots=True)
class Examined:
    """What was found out about a checkpoint."""

    state: str
    """ok, damaged, newer (of a newer tasuki), unreadable (the file system's error), gone."""
    manifest: Manifest | None
    findings: tuple[Finding, ...] = ()

    @property
    def is_good(self) -> bool:
        return self.state == "ok"


@dataclass(slots=True)
class Examiner:
    """Examines the checkpoints of one run. Frozen files that several share are read once."""

    on_bytes: OnBytes = lambda _: None
    _frozen: dict[FileRecord, tuple[Finding, ...]] = field(default_factory=dict)

    def examine(self, path: Path, *, is_thorough: bool = True) -> Examined:
        """Every byte; or, not thorough, only that all files are there and as long as they were."""
        manifest: Manifest | None = None
        try:
            manifest = _read_manifest(path)
            findings = tuple(self._findings(path, manifest, is_thorough))
        except DamagedCheckpoint as error:
            findings = (Finding(MANIFEST_NAME, _without(path, error)),)
        except NewerFormat as error:
            return Examined("newer", None, (Finding(MANIFEST_NAME, _without(path, error)),))
        except StoreError as error:
            if not path.exists():
                return Examined("gone", manifest)
            return Examined("unreadable", manifest, (Finding("", str(error)),))
        # A prune renames the folder first: what it takes away meanwhile is not damage.
        if findings and not os.path.lexists(path):
            return Examined("gone", manifest)
        return Examined("damaged" if findings else "ok", manifest, findings)

    def _findings(self, path: Path, manifest: Manifest, is_thorough: bool) -> Iterator[Finding]:
        with translated(path):
            found = set(os.listdir(path))
        expected = {record.name for record in manifest.files}
        for name in sorted(found - expected - {MANIFEST_NAME}):
            yield Finding(name, "does not belong to this checkpoint")
        for record in manifest.files:
            if record.name not in found:
                yield Finding(record.name, "is missing")
            else:
                yield from self._check(path / record.name, record, record.name, is_thorough)
        for record in manifest.frozen:
            yield from self._check_frozen(frozen_folder(path.parent), record, is_thorough)

    def _check_frozen(
        self, folder: Path, record: FileRecord, is_thorough: bool
    ) -> tuple[Finding, ...]:
        if not is_thorough:
            return tuple(self._check(folder / record.name, record, f"frozen/{record.name}", False))
        if record not in self._frozen:
            found = self._check(folder / record.name, record, f"frozen/{record.name}", True)
            self._frozen[record] = tuple(found)
        return self._frozen[record]

    def _check(
        self, path: Path, record: FileRecord, name: str, is_thorough: bool
    ) -> Iterator[Finding]:
        try:
            check_size(path, record)
            if is_thorough:
                forget(path)  # what the disk holds is asked, not what the system remembers of it
            bad = list(_bad_stretches(path, record, self.on_bytes)) if is_thorough else []
        except DamagedCheckpoint as error:
            yield Finding(name, _without(path, error))
            return
        if bad:
            shown = ", ".join(f"{start} and {stop}" for start, stop in bad[:_SHOWN_STRETCHES])
            more = len(bad) - _SHOWN_STRETCHES
            rest = f", and in {more} more places" if more > 0 else ""
            yield Finding(name, f"is damaged between bytes {shown}{rest}")


def _read_manifest(path: Path) -> Manifest:
    """Also of a checkpoint that was put aside under another name."""
    if not path.name.startswith(QUARANTINE):
        return read_manifest(path)
    return parse_manifest(read_file(path / MANIFEST_NAME, limit=MAX_MANIFEST_BYTES))


def _bad_stretches(path: Path, record: FileRecord, on_bytes: OnBytes) -> Iterator[tuple[int, int]]:
    """From and to which byte a file is not what it was; neighbours joined."""
    first: int | None = None
    with opened(path) as fd:
        for number, expected in enumerate(record.crc32):
            start = number * record.chunk_bytes
            stop = min(start + record.chunk_bytes, record.size)
            is_good = _sum_of(fd, stop - start, on_bytes) == expected
            if is_good and first is not None:
                yield first, start
                first = None
            elif not is_good and first is None:
                first = start
    if first is not None:
        yield first, record.size


def _sum_of(fd: int, count: int, on_bytes: OnBytes) -> int:
    crc = 0
    while count and (piece := os.read(fd, min(count, _READ_BYTES))):
        crc = zlib.crc32(piece, crc)
        count -= len(piece)
        on_bytes(len(piece))
    return crc if not count else -1


def _without(path: Path, error: Exception) -> str:
    """The words without the path, which is known."""
    words = str(error)
    for prefix in (f"{path / MANIFEST_NAME} ", f"{path}/", f"{path}: ", f"{path} "):
        words = words.removeprefix(prefix)
    return words
