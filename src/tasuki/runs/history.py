"""What runs measured, kept for the next estimate: append-only, one writer per file.

Lines come from many runs, attempts and versions of tasuki, and some of their writers were killed.
So a reader takes every whole line it understands, and for the others says file, number and why: a
line is never fatal and never passed over in silence. One value that cannot be (a text for a number,
NaN, less than nothing, a step of a year) spoils its line as a whole: who writes such a thing is not
to be believed. Keys that nobody knows are left alone. Written by train/remember.py.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasuki.errors import StoreError
from tasuki.runs.atomic import (
    FILE_MODE,
    FORMAT,
    list_folder,
    make_folder,
    read_plain,
    to_json,
    translated,
    write_all,
)
from tasuki.runs.jobs import HISTORY

_LARGEST = 64 << 20
"""Larger files are not ours: a line has some kilobytes, a file the stages of one attempt."""
_MOST_SECONDS = 3.2e7
"""Of anything that is measured: a year."""
_LEAST_SECONDS = 1e-9
"""Of anything that is not 0: no clock tells less."""
_MOST_BYTES = 1e15
_MOST = 2.0**53
_TEXTS = {
    *("kind", "key", "family", "run", "experiment", "stage", "recipe", "data", "device"),
    *("device_model", "gpu", "on", "sha256"),
}
_COUNTS = {
    *("claim", "ranks", "steps", "steps_per_epoch", "samples", "effective_batch", "micro_batch"),
    *("size", "saves", "validations", "attempts", "preemptions"),
}
_GROUPS: dict[str, type] = {"buckets": list, "parts": dict, "memory": dict, "predicted": dict}


@dataclass(frozen=True, slots=True, order=True)
class LeftOut:
    """Lines of one file that tell nothing, and why."""

    file: str
    """Its name in the folder of the history."""
    what: str
    lines: int = 1

    def in_words(self) -> str:
        return f"{self.file}: {self.lines} line{'s' if self.lines > 1 else ''} {self.what}"


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """All that is known, and what could not be read."""

    facts: tuple[dict[str, Any], ...] = ()
    left_out: tuple[LeftOut, ...] = ()


def append_history(runs: Path, writer: str, value: dict[str, Any]) -> None:
    """Add one measured fact. `writer` is unique (experiment, claim), so files never have two."""
    path = make_folder(runs / HISTORY) / f"{writer}.jsonl"
    with translated(path):
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, FILE_MODE)
        try:
            write_all(fd, _end_of_torn(fd) + to_json(value))
        finally:
            os.close(fd)


def _end_of_torn(fd: int) -> bytes:
    """What the disk had no room for must not spoil the next line."""
    size = os.fstat(fd).st_size
    return b"\n" if size and os.pread(fd, 1, size - 1) != b"\n" else b""


def read_history(runs: Path) -> Iterator[dict[str, Any]]:
    """Every fact, for who has nobody to tell what was left out."""
    yield from look_at_history(runs).facts


def look_at_history(runs: Path) -> History:
    """Every fact in all files, oldest file name first, and what was left out."""
    facts: list[dict[str, Any]] = []
    left_out: Counter[tuple[str, str]] = Counter()
    for path in _files(runs, left_out):
        try:
            text = read_plain(path, limit=_LARGEST)
        except StoreError as error:
            left_out[path.name, f"cannot be read: {error}"] += 1
            continue
        for line in filter(None, text.split(b"\n")):
            found = _read_line(line)
            if isinstance(found, str):
                left_out[path.name, found] += 1
            else:
                facts.append(found)
    told = (LeftOut(file, what, count) for (file, what), count in left_out.items())
    return History(facts=tuple(facts), left_out=tuple(sorted(told)))


def _files(runs: Path, left_out: Counter[tuple[str, str]]) -> list[Path]:
    try:
        return list_folder(runs / HISTORY, "*.jsonl")
    except StoreError as error:
        left_out[HISTORY, f"cannot be read: {error}"] += 1
        return []


def _read_line(line: bytes) -> dict[str, Any] | str:
    """A fact, or why it is none."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return "torn or damaged"
    if not isinstance(value, dict):
        return "foreign: no JSON object"
    found = value.get("format", FORMAT)
    if not isinstance(found, int) or isinstance(found, bool):
        return "foreign: a format that is no number"
    if found > FORMAT:
        return f"of format {found}; this tasuki reads up to {FORMAT}"
    wrong = wrong_in(value)
    return value if wrong is None else f"foreign: {wrong}"


def wrong_in(fact: Mapping[str, Any]) -> str | None:
    """The first value of a line that cannot be, in words; None: all can."""
    for name, value in fact.items():
        if value is None:
            continue
        if name in _GROUPS:
            wrong = _wrong_group(name, value)
        elif name in _TEXTS:
            wrong = None if isinstance(value, str) else f"`{name}` is no text"
        else:
            wrong = _wrong_number(name, value, _most_of(name))
        if wrong is not None:
            return wrong
    return None


def _wrong_group(name: str, value: object) -> str | None:
    if not isinstance(value, _GROUPS[name]):
        return f"`{name}` is no {'list' if _GROUPS[name] is list else 'object'}"
    if isinstance(value, dict):
        if name != "parts":
            return wrong_in(value)
        numbers = (_wrong_number(part, spent, _MOST_SECONDS) for part, spent in value.items())
        return next((wrong for wrong in numbers if wrong), None)
    assert isinstance(value, list)
    entries = (wrong_in(one) if isinstance(one, dict) else f"`{name}` is odd" for one in value)
    return next((wrong for wrong in entries if wrong), None)


def _most_of(name: str) -> float | None:
    """None: what it means is not known here."""
    if name == "at":
        return _MOST_SECONDS * 10_000
    if name.endswith("_s") or name.startswith("step_s"):
        return _MOST_SECONDS
    if name.endswith("_bytes"):
        return _MOST_BYTES
    return _MOST if name in _COUNTS else None


def _wrong_number(name: str, value: object, most: float | None) -> str | None:
    if most is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return f"`{name}` is no number"
    is_too_small = most == _MOST_SECONDS and 0 < value < _LEAST_SECONDS
    if not 0 <= value <= most or is_too_small:  # nor is NaN
        return f"`{name}` is {value!r:.20}, which cannot be"
    if name in _COUNTS and value != int(value):
        return f"`{name}` is no whole number"
    return None
