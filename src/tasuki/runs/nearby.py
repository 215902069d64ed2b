"""What there is instead of a path that does not exist, in words: typing errors show at once."""

from __future__ import annotations

import difflib
import os
from pathlib import Path

_SHOWN = 5
_LOOKED_AT = 2000
"""Names of a folder; data folders may hold millions."""


def look_beside(path: Path) -> str:
    """The nearest name beside a missing path, else what is there."""
    missing = path.absolute()
    folder = missing.parent
    while not folder.is_dir() and folder != folder.parent:
        missing, folder = folder, folder.parent
    try:
        names = _some_names(folder)
    except OSError:
        return f"{folder} cannot be read"
    if not names:
        return f"{folder} is empty"
    lower = {name.lower(): name for name in names}
    near = difflib.get_close_matches(missing.name.lower(), lower, n=1)
    if near:
        return f"the nearest in {folder} is `{lower[near[0]]}`"
    rest = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{folder} holds {', '.join(f'`{name}`' for name in names[:_SHOWN])}{rest}"


def _some_names(folder: Path) -> list[str]:
    with os.scandir(folder) as entries:
        names = [entry.name for entry, _ in zip(entries, range(_LOOKED_AT), strict=False)]
    return sorted(name for name in names if not name.startswith("."))
