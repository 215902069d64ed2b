"""What was found out about a stage once, and whether it still holds. Kept under `runs/.probes`.

An answer is kept under a key of the stage's plain values, beside what a key cannot hold: the files
of code that the child named, the stage's data (names, sizes, times) and versions of packages. It
counts while these are as they were, so neither torch nor the recipe is imported to find it again.
Used by predict.py (data, memory of steps) and measure.py (times of steps).
"""

from __future__ import annotations

import glob
import hashlib
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from tasuki.runs.probes import keep, read_kept
from tasuki.spec.resolved import ResolvedStage

_MOST_FILES = 5000
"""Of a stage's data that are looked at; beyond them a change may go unnoticed, if all of these are
as they were."""
NO_FILES = "no files"


@dataclass(slots=True)
class Keeper:
    """Of one folder of runs."""

    runs: Path
    notes: list[str] = field(default_factory=list)
    """About what was kept and does not count, and why nothing can be kept."""
    _digests: dict[str, str] = field(default_factory=dict)
    """Of files of code, as they are now."""

    def read(self, key: str, *, data: str) -> dict[str, Any] | None:
        """What is kept, if it still holds."""
        kept, trouble = read_kept(self.runs, key)
        if trouble:
            self._note(f"{trouble}: it is made anew")
        if kept is None:
            return None
        if not _is_ours(kept, key):
            self._note(f"{self.runs}/.probes/{key}.json holds something else: made anew")
            return None
        same = kept["versions"] == _versions() and kept["data"] == data
        return kept if same and self._is_same_code(kept["code"]) else None

    def keep(self, key: str, value: dict[str, Any], *, code: Mapping[str, str], data: str) -> None:
        facts = {"key": key, "versions": _versions(), "code": dict(code), "data": data}
        why_not = keep(self.runs, key, {**facts, "value": value})
        if why_not:
            self._note(f"nothing is kept for the next time: {why_not}")

    def _is_same_code(self, code: Mapping[str, str]) -> bool:
        for file in code:
            if file not in self._digests:
                self._digests[file] = _digest(file)
        return all(self._digests[file] == digest for file, digest in code.items())

    def _note(self, words: str) -> None:
        if words not in self.notes:
            self.notes.append(words)


def _is_ours(kept: Mapping[str, Any], key: str) -> bool:
    shapes = {"versions": dict, "code": dict, "data": str, "value": dict}
    return kept.get("key") == key and all(isinstance(kept.get(n), t) for n, t in shapes.items())


@cache
def _versions() -> dict[str, str]:
    found = {}
    for name in ("tasuki", "torch", "numpy"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


@cache
def packages_here() -> str:
    """All that is installed, with versions, in one digest: steps are as fast as what they use."""
    names = sorted({name for place in sys.path for name in _installed(place)})
    return hashlib.sha256("\n".join(names).encode(errors="replace")).hexdigest()[:32]


def _installed(place: str) -> list[str]:
    try:
        return [name for name in os.listdir(place) if name.endswith((".dist-info", ".egg-info"))]
    except OSError:
        return []


def _digest(file: str) -> str:
    try:
        return hashlib.sha256(Path(file).read_bytes()).hexdigest()
    except OSError:
        return "not there"


def stamps_of(stage: ResolvedStage, folder: str) -> str:
    """Names, sizes and times of the files that a stage's data are, in one digest. Data that are no
    files (a name that only the recipe knows) always look the same."""
    named = [stage.data] if isinstance(stage.data, str) else stage.data or []
    digest = hashlib.sha256()
    num = 0
    for path in sorted(file for name in named for file in _files(Path(folder, str(name)))):
        if (num := num + 1) > _MOST_FILES:
            break
        try:
            found = Path(path).stat()
        except OSError:
            continue
        digest.update(f"{path}\0{found.st_size}\0{found.st_mtime_ns}\n".encode(errors="replace"))
    return digest.hexdigest() if num else NO_FILES


def _files(path: Path) -> Iterator[str]:
    """Of a folder all, whatever their depth; of a pattern those that fit."""
    # `Path.exists` raises for a name that is too long to be one.
    exists = os.path.exists(path)  # noqa: PTH110
    named = [str(path)] if exists else glob.glob(str(path))  # noqa: PTH207 (absolute ones)
    for name in named:
        if not os.path.isdir(name):  # noqa: PTH112
            yield name
            continue
        for place, folders, files in os.walk(name):
            folders.sort()
            yield from (os.path.join(place, file) for file in files)  # noqa: PTH118
