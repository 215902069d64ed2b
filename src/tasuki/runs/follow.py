"""A run's events and metrics as they grow: each look reads only what was added since the last.

For whoever looks again and again (`watch`, the board): a look at a run that stands still costs one
`stat` per file. Signs of life that a later one repeats are dropped, so a follower of a run of a
week is as small as one of an hour. Who looks once may use it too. Decides nothing, writes nothing.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tasuki.runs.events import in_order, is_newer, is_whole
from tasuki.runs.lines import LineReader, parse_lines
from tasuki.runs.runs import RunFolder

_MOST_FIGURES = 50_000


class GrowingFolder:
    """The `.jsonl` files of a folder, each read once; files may come, grow and go."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._readers: dict[str, LineReader] = {}
        self._inodes: dict[str, int] = {}

    def grown(self) -> list[tuple[str, LineReader]] | None:
        """Files with something new, by name, the lowest number first. None: what was read counts
        no more, since a file is gone, another, or shorter; all of them are to be read again."""
        sizes = self._sizes()
        for name, reader in self._readers.items():
            inode, size = sizes.get(name, (0, -1))
            if inode != self._inodes[name] or size < reader.offset:
                self._readers.clear()
                self._inodes.clear()
                return None
        found = []
        for name in sorted(sizes, key=_by_number):
            inode, size = sizes[name]
            if name not in self._readers:
                self._readers[name] = LineReader(self._folder / name)
                self._inodes[name] = inode
            if size > self._readers[name].offset:
                found.append((name, self._readers[name]))
        return found

    def _sizes(self) -> dict[str, tuple[int, int]]:
        """(inode, size) by name. A folder that is not there holds nothing."""
        sizes = {}
        try:
            with os.scandir(self._folder) as entries:
                for entry in entries:
                    if entry.name.endswith(".jsonl") and entry.is_file():
                        found = entry.stat()
                        sizes[entry.name] = found.st_ino, found.st_size
        except OSError:
            return {}
        return sizes


def _by_number(name: str) -> tuple[int, str]:
    first = name.split(".", 1)[0]
    return int(first) if first.isdecimal() else 0, name


class EventFollower:
    """The events of a run, as `read_events` gives them, but for machine figures and for signs of
    life that later ones repeat."""

    def __init__(self, run: RunFolder) -> None:
        self._files = GrowingFolder(run.events)
        self._by_file: dict[str, list[dict[str, Any]]] = {}
        self._events: list[dict[str, Any]] | None = None
        self.beginnings = 0
        """How often all was read anew, because files were gone or others."""
        self.machine: deque[dict[str, Any]] = deque(maxlen=_MOST_FIGURES)
        """Machine figures, apart from the rest: whoever draws them takes them out."""
        self.newer = 0
        """Lines that a newer tasuki wrote in a format of its own; they are left out."""

    def look(self) -> bool:
        """Read what was added. Was there anything?"""
        grown = self._files.grown()
        is_new = grown is None
        if grown is None:
            self._by_file.clear()
            self.machine.clear()
            self.newer = 0
            self.beginnings += 1
            grown = self._files.grown() or []
        for name, reader in grown:
            own = self._by_file.setdefault(name, [])
            for event in _parse(reader):
                is_new = True
                if not is_whole(event):
                    self.newer += is_newer(event)
                elif event["kind"] == "machine":
                    self.machine.append(event)
                else:
                    _keep(own, event)
        if is_new:
            self._events = None
        return is_new

    @property
    def events(self) -> list[dict[str, Any]]:
        """In order of claim, then time."""
        if self._events is None:
            self._events = in_order([e for own in self._by_file.values() for e in own])
        return self._events


def _parse(reader: LineReader) -> Iterator[dict[str, Any]]:
    for part in reader.read_parts():
        yield from parse_lines(part)


def _keep(own: list[dict[str, Any]], event: dict[str, Any]) -> None:
    """A `progress` holds all that the one before it in its stage and attempt held."""
    last = own[-1] if own else None
    is_repeated = (
        last is not None
        and event["kind"] == last["kind"] == "progress"
        and event.get("stage") == last.get("stage")
        and event.get("from_step") == last.get("from_step")
    )
    if is_repeated:
        own[-1] = event
    else:
        own.append(event)
