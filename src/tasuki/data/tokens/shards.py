"""Write a stream of tokens into shards, and go on at any place of it.

The stream is the shards one after another, so its length tells everything: which shard is open, and
how much of it counts. What lies beyond is what a killed process had not noted, and is cut off.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from tasuki.data.tokens.index import shard_name
from tasuki.runs.atomic import fsync_folder, translated, write_all

_READ = 1 << 20
MODE = 0o666
"""Of outputs; the umask says the rest."""


class Shards:
    """The shards of one output, written in order."""

    def __init__(self, folder: Path, *, shard_bytes: int, done: int, hashes: list[str]) -> None:
        """Go on behind the first `done` bytes; `hashes` are those of the shards that are full."""
        self._folder, self._shard_bytes = folder, shard_bytes
        self.done = done
        self.hashes = hashes[: done // shard_bytes]
        self._fd, self._digest = -1, hashlib.sha256()
        self._drop_the_rest()
        if done % shard_bytes:
            self._reopen(done % shard_bytes)

    def write(self, data: bytes | memoryview) -> None:
        view = memoryview(data)
        with translated(self._folder, need=len(view)):
            while view:
                if self._fd < 0:
                    self._create()
                room = self._shard_bytes - self.done % self._shard_bytes
                part, view = view[:room], view[room:]
                write_all(self._fd, part)
                self._digest.update(part)
                self.done += len(part)
                if self.done % self._shard_bytes == 0:
                    self._finish()

    def sync(self) -> None:
        """What was written is on the disk."""
        with translated(self._folder):
            if self._fd >= 0:
                os.fsync(self._fd)
            fsync_folder(self._folder)

    def end(self) -> None:
        """Nothing more comes."""
        with translated(self._folder):
            if self._fd >= 0:
                self._finish()
            fsync_folder(self._folder)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _path(self) -> Path:
        return self._folder / shard_name(self.done // self._shard_bytes)

    def _create(self) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        self._fd = os.open(self._path(), flags, MODE)
        self._digest = hashlib.sha256()

    def _finish(self) -> None:
        os.fsync(self._fd)
        self.close()
        self.hashes.append(self._digest.hexdigest())

    def _reopen(self, size: int) -> None:
        with translated(self._folder):
            self._fd = os.open(self._path(), os.O_RDWR | os.O_CLOEXEC)
            os.ftruncate(self._fd, size)
            while data := os.read(self._fd, _READ):
                self._digest.update(data)

    def _drop_the_rest(self) -> None:
        kept = {shard_name(number) for number in range(-(-self.done // self._shard_bytes))}
        with translated(self._folder):
            for path in self._folder.glob("tokens-*.bin"):
                if path.name not in kept:
                    path.unlink()


def is_there(folder: Path, *, shard_bytes: int, done: int) -> bool:
    """Whether the first `done` bytes of the stream are in these files."""
    for number in range(-(-done // shard_bytes)):
        try:
            size = (folder / shard_name(number)).stat().st_size
        except OSError:
            return False
        if size < min(shard_bytes, done - number * shard_bytes):
            return False
    return True
