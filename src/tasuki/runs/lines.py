"""JSON lines with one writer: an append is one `write`, so a kill tears at most the last line."""

from __future__ import annotations

import contextlib
import json
import os
import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from io import FileIO
from itertools import accumulate
from pathlib import Path
from typing import Any

from tasuki.errors import StoreError
from tasuki.runs.atomic import FILE_MODE, make_folder, open_plain, to_json, translated, write_all

_TAIL_BYTES = 65536
_PART_BYTES = 4 << 20
_MAX_LINE = 16 << 20
_MAX_WAITING = 100_000


class LineWriter:
    """Appends values to a file that belongs to this process alone."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = -1
        self._is_torn = False
        self._waiting: deque[dict[str, Any]] = deque(maxlen=_MAX_WAITING)
        self._lock = threading.Lock()

    def append(self, value: dict[str, Any]) -> None:
        """Written at once, or kept until it can be: a sick or full disk ends no run by this."""
        self.append_all((value,))

    def append_all(self, values: Sequence[dict[str, Any]]) -> None:
        """The same of several lines, in one write where nothing is in the way."""
        with self._lock:
            done = self._write_at_once(values)
            if done < len(values):
                self._waiting.extend(values[done:])
                with contextlib.suppress(StoreError):
                    self._write()

    def _write_at_once(self, values: Sequence[dict[str, Any]]) -> int:
        """How many of them were written whole. In few calls: it is done in the training's loop."""
        if self._fd < 0 or self._is_torn or self._waiting:
            return 0
        lines = [_line(value) for value in values]
        try:
            written = os.write(self._fd, b"".join(lines))
        except OSError:
            return 0
        # A line is whole when its closing brace is: what follows one that is torn begins with "\n".
        ends = list(accumulate(map(len, lines), initial=0))
        done = bisect_right(ends, written + 1) - 1 if written else 0
        self._is_torn = ends[done] != written
        return done

    def _write(self) -> None:
        with translated(self.path):
            if self._fd < 0:
                make_folder(self.path.parent)
                flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
                self._fd = os.open(self.path, flags, FILE_MODE)
            while self._waiting:
                line = _line(self._waiting[0])
                data = b"\n" + line if self._is_torn else line
                self._is_torn = True  # until it is written whole: a full disk may keep a part
                write_all(self._fd, data)
                self._is_torn = False
                self._waiting.popleft()
            if self._is_torn:  # of a whole line only its end is missing
                write_all(self._fd, b"\n")
                self._is_torn = False

    def sync(self) -> None:
        """Make everything so far durable: called before a commit that counts on it."""
        with self._lock:
            if self._waiting or self._is_torn:
                self._write()
        if self._fd >= 0:  # outside of the lock: nobody waits for the disk to write a line
            with translated(self.path):
                os.fsync(self._fd)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _line(value: dict[str, Any]) -> bytes:
    try:
        return to_json(value)
    except ValueError:
        return to_json(spelled(value))


def spelled(value: Any) -> Any:
    """NaN and inf as words: JSON has no such numbers, and a line must never be refused."""
    if isinstance(value, dict):
        return {key: spelled(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [spelled(entry) for entry in value]
    if isinstance(value, float) and not -float("inf") < value < float("inf"):
        return str(value)
    return value


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """All whole lines; a torn one (its writer was killed) is left out."""
    for part in LineReader(path).read_parts():
        yield from parse_lines(part)


class LineReader:
    """Reads a file that somebody else is still writing: each whole line once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.offset = 0
        """How much of it was read: whole lines alone."""

    def read(self) -> list[dict[str, Any]]:
        """What was added since the last call. A line that is not whole yet waits for its end."""
        return [value for part in self.read_parts() for value in parse_lines(part)]

    def read_parts(self) -> Iterator[bytes]:
        """The same as text, some megabytes of whole lines at a time: a file of a long run need not
        fit into memory."""
        with translated(self._path):
            try:
                with open_plain(self._path) as file:
                    yield from self._whole_lines(file)
            except FileNotFoundError:
                return

    def _whole_lines(self, file: FileIO) -> Iterator[bytes]:
        file.seek(self.offset)
        torn = b""
        while text := file.read(_PART_BYTES):
            end = text.rfind(b"\n") + 1
            if not end:
                torn += text
                if len(torn) > _MAX_LINE:  # nobody of ours wrote it: not kept until its end
                    self.offset, torn = self.offset + len(torn), b""
                continue
            whole, torn = torn + text[:end], text[end:]
            self.offset += len(whole)
            yield whole


def read_last_lines(path: Path) -> list[dict[str, Any]]:
    """The lines at a file's end, without reading the rest."""
    with translated(path):
        try:
            with open_plain(path) as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - _TAIL_BYTES))
                text = file.read()
        except FileNotFoundError:
            return []
    return list(parse_lines(text))


def parse_lines(text: bytes) -> Iterator[dict[str, Any]]:
    for line in text.split(b"\n"):
        if not line:
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            yield value
