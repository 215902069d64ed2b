"""What runs measured, kept for the next estimate: append-only, one writer per file."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tasuki.store.atomic import FILE_MODE, make_folder, to_json, translated, write_all
from tasuki.store.jobs import HISTORY


def append_history(runs: Path, writer: str, value: dict[str, Any]) -> None:
    """Add one measured fact. `writer` is unique (experiment, claim), so files never have two."""
    path = make_folder(runs / HISTORY) / f"{writer}.jsonl"
    with translated(path):
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, FILE_MODE)
        try:
            write_all(fd, to_json(value))
        finally:
            os.close(fd)


def read_history(runs: Path) -> Iterator[dict[str, Any]]:
    """Every fact; a torn last line (a writer was killed) is no fact."""
    folder = runs / HISTORY
    if not folder.is_dir():
        return
    for path in sorted(folder.glob("*.jsonl")):
        for line in path.read_bytes().split(b"\n"):
            try:
                value = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(value, dict):
                yield value
