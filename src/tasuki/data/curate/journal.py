"""The work folder of HDF5 files that are not finished, with what was found in each source.

    .<output>.partial/
      lock, journal.json (runs/unfinished.py)
      <digests>, …       what was found in each source file
      new.<output>       laid out at once, then filled block by block

A source that changed makes its part of the journal worthless, and so does a plan that came out
differently; both are said.
"""

from __future__ import annotations

import hashlib
import io
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasuki.data.curate.contents import Stamp
from tasuki.data.curate.findings import Findings, no_findings
from tasuki.runs.atomic import fsync_folder, translated, write_all, write_bytes
from tasuki.runs.unfinished import Say, WorkFolder


class Work(WorkFolder):
    def __init__(self, folder: Path, *, say: Say) -> None:
        super().__init__(folder, say=say)
        if not isinstance(self.journal.get("scans"), dict):
            self.journal["scans"] = {}

    def partial(self, output: Path) -> Path:
        """Where an output is made."""
        return self.folder / f"new.{output.name}"

    def kept_scan(
        self, path: Path, stamp: Stamp | None
    ) -> tuple[int, NDArray[np.uint64], Findings]:
        """(Samples that were read, their digests, findings) of an earlier call."""
        key = str(path.absolute())
        kept = self.journal["scans"].get(key)
        if kept is not None and kept["stamp"] == stamp:
            digests = _load(self._file(path, "digests"), kept["samples"] * 2, np.uint64)
            findings = _load(self._file(path, "findings"), kept["findings"] * 3, np.int64)
            if digests is not None and findings is not None:
                return kept["samples"], digests.reshape(-1, 2), findings.reshape(-1, 3)
        elif kept is not None:
            self.say(f"`{path}` changed since the call that was interrupted: reading it again")
        self.journal["scans"][key] = {"stamp": stamp, "samples": 0, "findings": 0}
        return 0, np.empty((0, 2), dtype=np.uint64), no_findings()

    def keep_scan(self, path: Path, digests: NDArray[np.uint64], findings: Findings) -> None:
        """Of the next samples of this file."""
        kept = self.journal["scans"][str(path.absolute())]
        with translated(self.folder):
            _put(self._file(path, "digests"), digests, at=kept["samples"] * 16)
            _put(self._file(path, "findings"), findings, at=kept["findings"] * 24)
            fsync_folder(self.folder)
        kept["samples"] += len(digests)
        kept["findings"] += len(findings)
        self.write_journal()

    def kept_pairs(self, key: str) -> NDArray[np.int64] | None:
        """Pairs of duplicates that an earlier call found in the same samples."""
        if self.journal.get("pairs") != key:
            return None
        try:
            return np.asarray(np.load(self.folder / "pairs.npy", allow_pickle=False), np.int64)
        except (OSError, ValueError):
            return None

    def keep_pairs(self, key: str, pairs: NDArray[np.int64]) -> None:
        stream = io.BytesIO()
        np.save(stream, pairs, allow_pickle=False)
        write_bytes(self.folder / "pairs.npy", stream.getvalue())
        self.journal["pairs"] = key
        self.write_journal()

    @property
    def writing(self) -> dict[str, Any] | None:
        """{plan, files, next, publishing} of an output that was begun."""
        value: dict[str, Any] | None = self.journal.get("writing")
        return value

    @property
    def is_publishing(self) -> bool:
        """Whether outputs are complete, and may have their names."""
        return self.writing is not None and bool(self.writing["publishing"])

    def keep_writing(self, value: dict[str, Any] | None) -> None:
        self.journal["writing"] = value
        self.write_journal()

    def _file(self, path: Path, what: str) -> Path:
        name = hashlib.sha256(str(path.absolute()).encode(errors="surrogateescape")).hexdigest()
        return self.folder / f"{name[:16]}.{what}"


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
