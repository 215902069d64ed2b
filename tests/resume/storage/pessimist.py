"""A disk that keeps only what it was told to keep: every power cut between two system calls.

What POSIX promises, and no more: an fsync of a file keeps its bytes, an fsync of a folder its
names. Of what was not synced, each folder shows any of the states it has had since, and each file
is empty. A real disk is kinder (ext4 keeps the order of names); this one misses no missing fsync.
Independent of which calls are made: names are read from the folder.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.harness.syscalls import fork_watched
from tests.resume.storage.driver import live, memory
from tests.resume.storage.invariants import _of_checkpoint, _of_marker

from tasuki.checkpoint.lineage import find_latest
from tasuki.errors import TasukiError
from tasuki.runs.runs import RunFolder

Listing = dict[str, int]
"""Name → inode."""
_SYNCS = ("fsync", "fdatasync")


@dataclass
class Disk:
    """What is surely there, and what may be."""

    root: int
    folders: set[int] = field(default_factory=set)
    kept: dict[int, Listing] = field(default_factory=dict)
    """By folder: the names that were synced."""
    since: dict[int, list[Listing]] = field(default_factory=dict)
    """By folder: all states after that, in order."""
    bytes: dict[int, bytes] = field(default_factory=dict)
    """By file: what was synced."""

    def look(self, top: Path) -> None:
        """Take in how names are now."""
        for path, listing in _listings(top):
            inode = path.stat().st_ino
            self.folders.add(inode)
            states = self.since.setdefault(inode, [])
            if listing != (states[-1] if states else self.kept.get(inode, {})):
                states.append(listing)

    def sync(self, path: Path) -> None:
        found = path.stat()
        if stat.S_ISDIR(found.st_mode):
            self.kept[found.st_ino] = dict(_listing(path))
            self.since[found.st_ino] = []
        else:
            self.bytes[found.st_ino] = path.read_bytes()

    def cuts(self) -> Iterator[dict[int, Listing]]:
        """What the folders may hold after a power cut now."""
        current = {inode: states[-1] for inode, states in self.since.items() if states}
        yield self.kept
        yield {**self.kept, **current}
        for inode, states in self.since.items():
            for state in states:
                yield {**self.kept, inode: state}
                yield {**self.kept, **current, inode: state}

    def shape(self, folders: dict[int, Listing], inode: int | None = None) -> Any:
        """The tree as a value: two cuts that look alike are one."""
        inode = self.root if inode is None else inode
        if inode not in self.folders:
            return self.bytes.get(inode, b"")
        entries = folders.get(inode, {})
        return tuple((name, self.shape(folders, n)) for name, n in sorted(entries.items()))


def _listings(top: Path) -> Iterator[tuple[Path, Listing]]:
    for folder, _, _ in os.walk(top):
        yield Path(folder), _listing(Path(folder))


def _listing(folder: Path) -> Listing:
    with os.scandir(folder) as entries:
        return {entry.name: entry.inode() for entry in entries}


def _write(shape: Any, path: Path) -> None:
    if isinstance(shape, bytes):
        path.write_bytes(shape)
        return
    path.mkdir()
    for name, inner in shape:
        _write(inner, path / name)


def find_problems(run: RunFolder, told: list[str]) -> list[str]:
    """After a power cut at which this much had been acknowledged."""
    damaged: list[str] = []
    try:
        latest = find_latest(run, lambda name, error: damaged.append(str(error)))
    except TasukiError as error:
        return [f"after {told[-1:]}: {error}"]
    found = [f"something partial is visible: {text}" for text in damaged]
    saved = [name for name in told if name != "marker"]
    if saved and (latest is None or latest.manifest.position.step < _step(saved[-1])):
        found.append(f"{saved[-1]} was acknowledged, but the latest is {latest and latest.name}")
    if latest is not None:
        found += _of_checkpoint(latest.path)
    if run.marker.exists():
        found += _of_marker(run)
    elif "marker" in told:
        found.append("the marker was acknowledged, but is gone")
    return found


def _step(name: str) -> int:
    return int(name[5:14])


def cut_everywhere(*, num_saves: int) -> dict[str, Any]:
    """Live through a run; before each of its calls, look at every state a cut could leave."""
    # inode numbers are not used again there
    with tempfile.TemporaryDirectory(dir=memory()) as name:
        runs = Path(name) / "runs"
        runs.mkdir()
        run = RunFolder(runs / "exp")
        disk = Disk(runs.stat().st_ino)
        cuts = _Cuts(disk, Path(name) / "after")
        calls = 0
        child = fork_watched(
            lambda teller: live(run, lambda t: tell(teller, t), num_saves=num_saves), runs
        )
        while (call := child.next()) is not None:
            calls += 1
            disk.look(runs)
            place = f"before call {calls}, {call.kind}({', '.join(call.paths)})"
            cuts.look(place, child.lines)
            call.go_on()
            if call.kind in _SYNCS:
                disk.sync(Path(call.paths[0]))
        assert child.status == 0 and child.lines[-1] == "marker", child.lines
        disk.look(runs)
        cuts.look("at the end", child.lines)
    return {"calls": calls, "cuts": len(cuts.seen), "problems": cuts.problems}


class _Cuts:
    """Power cuts so far; two that leave the same are one."""

    def __init__(self, disk: Disk, after: Path) -> None:
        self._disk, self._after = disk, after
        self.seen: set[int] = set()
        self.problems: list[str] = []

    def look(self, place: str, told: list[str]) -> None:
        for cut in self._disk.cuts():
            shape = self._disk.shape(cut)
            if (key := hash((shape, tuple(told)))) in self.seen:
                continue
            self.seen.add(key)
            _write(shape, self._after)
            found = find_problems(RunFolder(self._after / "exp"), told)
            self.problems += [f"{place}: {text}" for text in found]
            shutil.rmtree(self._after)


def tell(teller: int, text: str) -> None:
    os.write(teller, text.encode() + b"\n")
