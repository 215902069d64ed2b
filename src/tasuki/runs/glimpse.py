"""A curve's outline from a few places of its files: for a list of many runs.

Reads a bounded number of bytes however long the run is; an exact curve is `commands/curves.py`'s.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from tasuki.errors import StoreError
from tasuki.runs.atomic import open_plain
from tasuki.runs.series import as_number

_CHUNK = 1536
"""Holds a whole line or two, wherever it begins."""


def glimpse(files: Sequence[Path], *, key: str = "loss", points: int = 32) -> list[float]:
    """About so many values of training, from the first to the last."""
    sizes = [(path, _size(path)) for path in files]
    ends = list(accumulate(size for _, size in sizes))
    total = ends[-1] if ends else 0
    found: list[float] = []
    seen: tuple[int, int] | None = None
    for number in range(points):
        place = max(0, total - _CHUNK) * number // max(1, points - 1)
        at = next((i for i, end in enumerate(ends) if place < end), None)
        if at is None:
            continue
        path, size = sizes[at]
        row = _row_near(path, place - (ends[at] - size), key)
        if row is not None and (at, row[0]) != seen:
            seen = at, row[0]
            found.append(row[1])
    return found


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _row_near(path: Path, offset: int, key: str) -> tuple[int, float] | None:
    """(step, value) of the first whole line of training behind a place."""
    try:
        with open_plain(path) as file:
            file.seek(offset)
            lines = file.read(_CHUNK).split(b"\n")
    except (OSError, StoreError):
        return None
    for line in lines[1 if offset else 0 :]:
        row = _parsed(line)
        value, step = row.get(key), row.get("step")
        value = value if isinstance(value, float) else as_number(value)  # NaN is a gap in the line
        if row.get("split") == "train" and value is not None and isinstance(step, int):
            return step, value
    return None


def _parsed(line: bytes) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
