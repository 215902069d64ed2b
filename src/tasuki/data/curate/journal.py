"""The work folder of an output that is not finished: what a later call need not do again.

    .<output>.partial/
      lock               held by the process that works here
      journal.json       what is done; replaced only after that is on the disk
      <digests>, …       what was found in each source file
      new.<output>       laid out at once, then filled block by block

A source that changed makes its part of the journal worthless, and so does a plan that came out
differently; both are said. The folder is removed when the output has its name.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasuki.data.curate.contents import Stamp
from tasuki.data.curate.findings import Findings, no_findings
from tasuki.errors import StoreError
from tasuki.store.atomic import (
    FORMAT,
    fsync_folder,
    make_folder,
    read_json_or_none,
    translated,
    write_all,
    write_bytes,
    write_json,
)
from tasuki.store.locks import take_lock

Say = Callable[[str], None]


class Work:
    """One work folder, held by this process."""

    def __init__(self, folder: Path, *, say: Say) -> None:
        self.folder = folder
        self._say = say
        self._made_parent = not folder.parent.exists()
        with translated(folder.parent):
            folder.parent.mkdir(parents=True, exist_ok=True)
        make_folder(folder)
        self._lock = take_lock(folder / "lock")
        self._journal = self._read()

    @property
    def _path(self) -> Path:
        return self.folder / "journal.json"

    @property
    def is_blank(self) -> bool:
        """Whether nothing in here would spare a later call anything."""
        return not self._path.exists()

    def partial(self, output: Path) -> Path:
        """Where an output is made."""
        return self.folder / f"new.{output.name}"

    def kept_scan(
        self, path: Path, stamp: Stamp | None
    ) -> tuple[int, NDArray[np.uint64], Findings]:
        """(Samples that were read, their digests, findings) of an earlier call."""
        key = str(path.absolute())
        kept = self._journal["scans"].get(key)
        if kept is not None and kept["stamp"] == stamp:
            digests = _load(self._file(path, "digests"), kept["samples"] * 2, np.uint64)
            findings = _load(self._file(path, "findings"), kept["findings"] * 3, np.int64)
            if digests is not None and findings is not None:
                return kept["samples"], digests.reshape(-1, 2), findings.reshape(-1, 3)
        elif kept is not None:
            self._say(f"`{path}` changed since the call that was interrupted: reading it again")
        self._journal["scans"][key] = {"stamp": stamp, "samples": 0, "findings": 0}
        return 0, np.empty((0, 2), dtype=np.uint64), no_findings()

    def keep_scan(self, path: Path, digests: NDArray[np.uint64], findings: Findings) -> None:
        """Of the next samples of this file."""
        kept = self._journal["scans"][str(path.absolute())]
        with translated(self.folder):
            _put(self._file(path, "digests"), digests, at=kept["samples"] * 16)
            _put(self._file(path, "findings"), findings, at=kept["findings"] * 24)
            fsync_folder(self.folder)
        kept["samples"] += len(digests)
        kept["findings"] += len(findings)
        self._write()

    def kept_pairs(self, key: str) -> NDArray[np.int64] | None:
        """Pairs of duplicates that an earlier call found in the same samples."""
        if self._journal.get("pairs") != key:
            return None
        try:
            return np.asarray(np.load(self.folder / "pairs.npy", allow_pickle=False), np.int64)
        except (OSError, ValueError):
            return None

    def keep_pairs(self, key: str, pairs: NDArray[np.int64]) -> None:
        stream = io.BytesIO()
        np.save(stream, pairs, allow_pickle=False)
        write_bytes(self.folder / "pairs.npy", stream.getvalue())
        self._journal["pairs"] = key
        self._write()

    @property
    def writing(self) -> dict[str, Any] | None:
        """{plan, files, next, publishing} of an output that was begun."""
        value: dict[str, Any] | None = self._journal.get("writing")
        return value

    @property
    def is_publishing(self) -> bool:
        """Whether outputs are complete, and may have their names."""
        return self.writing is not None and bool(self.writing["publishing"])

    def keep_writing(self, value: dict[str, Any] | None) -> None:
        self._journal["writing"] = value
        self._write()

    def say(self, text: str) -> None:
        self._say(text)

    def remove(self) -> None:
        """Nothing is left to do, or nothing can be done."""
        # Closed first: on NFS an open file that is deleted stays, and so would the folder.
        self.close()
        with translated(self.folder), contextlib.suppress(FileNotFoundError):
            # The journal last: as long as it is there, a second call finds that all is done.
            for path in self.folder.iterdir():
                if path != self._path:
                    path.unlink(missing_ok=True)
            self._path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self.folder.rmdir()
            if self._made_parent:
                self.folder.parent.rmdir()

    def close(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _file(self, path: Path, what: str) -> Path:
        name = hashlib.sha256(str(path.absolute()).encode(errors="surrogateescape")).hexdigest()
        return self.folder / f"{name[:16]}.{what}"

    def _read(self) -> dict[str, Any]:
        try:
            value = read_json_or_none(self._path)
        except StoreError:
            self._say(f"the journal in `{self.folder}` cannot be read: starting over")
            value = None
        if value is None or not isinstance(value.get("scans"), dict):
            value = {"format": FORMAT, "scans": {}}
        return value

    def _write(self) -> None:
        write_json(self._path, self._journal)


def _put(path: Path, values: NDArray[Any], *, at: int) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.lseek(fd, at, os.SEEK_SET)
        write_all(fd, np.ascontiguousarray(values).reshape(-1).view(np.uint8).data)
        os.fsync(fd)
    finally:
        os.close(fd)


def _load(path: Path, count: int, dtype: type[Any]) -> NDArray[Any] | None:
    if count == 0:
        return np.empty(0, dtype=dtype)
    try:
        values = np.fromfile(path, dtype=dtype, count=count)
    except OSError:
        return None
    return values if len(values) == count else None
