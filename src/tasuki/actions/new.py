"""`tasuki new DIR`: a project that runs at once: spec, recipe with a small model, .gitignore."""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path
from typing import Any

from tasuki.errors import UsageError
from tasuki.store.atomic import FORMAT

_FILES = {"tasuki.yaml": "tasuki.yaml", "recipe.py": "recipe.py", "gitignore": ".gitignore"}


def new_project(folder: Path, *, is_dry: bool = False) -> dict[str, Any]:
    """Never overwrites a file."""
    taken = [name for name in _FILES.values() if (folder / name).exists()]
    if taken:
        raise UsageError(
            f"{folder} has {' and '.join(taken)} already",
            hint="name another folder, or move these away",
        )
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file", hint="name a folder")
    if not is_dry:
        folder.mkdir(parents=True, exist_ok=True)
        project = re.sub(r"[^A-Za-z0-9_.-]+", "-", folder.absolute().name).strip("-.") or "project"
        template = resources.files("tasuki.templates") / "new"
        for source, target in _FILES.items():
            text = (template / source).read_text()
            (folder / target).write_text(text.replace("{project}", project))
    files = [str(folder / name) for name in _FILES.values()]
    return {"format": FORMAT, "folder": str(folder), "files": files}
