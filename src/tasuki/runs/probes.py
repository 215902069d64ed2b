"""`runs/.probes/<key>.json`: what was found out about stages before they ran. Rebuildable.

What does not read, is newer or somebody else's is no answer, and the reason is told: it is made
anew. Where nothing can be written nothing is kept. Used by commands/kept.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tasuki.errors import StoreError
from tasuki.runs.atomic import (
    FORMAT,
    make_folder,
    read_json_or_none,
    refuse_foreign,
    write_json,
)

PROBES = ".probes"


def read_kept(runs: Path, key: str) -> tuple[dict[str, Any] | None, str]:
    """What is kept under a key, and why it is none where a file is there."""
    folder = runs / PROBES
    try:
        refuse_foreign(folder, beside=runs)
        return read_json_or_none(folder / f"{key}.json"), ""
    except StoreError as error:
        return None, error.message


def keep(runs: Path, key: str, value: dict[str, Any]) -> str:
    """Why it could not be kept; empty: it was."""
    try:
        make_folder(runs / PROBES)
        refuse_foreign(runs / PROBES, beside=runs)
        write_json(runs / PROBES / f"{key}.json", {"format": FORMAT, **value})
    except StoreError as error:
        return error.message
    return ""
