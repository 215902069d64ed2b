"""`tasuki new DIR`: a project that runs at once: spec, recipe with a small model, .gitignore."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from tasuki.errors import UsageError
from tasuki.runs.atomic import FORMAT

RECIPE, GITIGNORE = "recipe.py", ".gitignore"
_FILES = ("tasuki.yaml", RECIPE, GITIGNORE)


def new_project(folder: Path, *, is_dry: bool = False) -> dict[str, Any]:
    """Never overwrites a file."""
    refuse_taken(folder, _FILES)
    if not is_dry:
        project = name_project(folder)
        make_files(folder, {n: read_template(n).replace("{project}", project) for n in _FILES})
    files = [str(folder / name) for name in _FILES]
    return {"format": FORMAT, "folder": str(folder), "files": files}


def refuse_taken(folder: Path, names: Iterable[str]) -> None:
    taken = [name for name in names if (folder / name).exists()]
    if taken:
        raise UsageError(
            f"{folder} has {' and '.join(taken)} already",
            hint="name another folder, or move these away",
        )
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file", hint="name a folder")


def name_project(folder: Path) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", folder.absolute().name).strip("-.") or "project"


def read_template(name: str) -> str:
    """A dot at the beginning would hide the template's own file."""
    return (resources.files("tasuki.templates") / "new" / name.lstrip(".")).read_text()


def make_files(folder: Path, texts: Mapping[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        # x: a file that came up since is not overwritten either
        with (folder / name).open("x", encoding="utf-8") as file:
            file.write(text)
