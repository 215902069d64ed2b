"""`tasuki new DIR --from-yaml FILES`: a project out of configuration files that exist already.

Reads the files and writes the project; what becomes of which key is decided in
`spec/translated.py`. Their files are never touched, and no file is overwritten.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tasuki.commands.new import (
    GITIGNORE,
    RECIPE,
    make_files,
    name_project,
    read_template,
    refuse_taken,
)
from tasuki.errors import UsageError
from tasuki.runs.atomic import FORMAT
from tasuki.spec.positions import Mark, Node
from tasuki.spec.source import Source, read_file
from tasuki.spec.translated import Translation, translate_files

_KEYWORDS = "def __init__(self, width: int = 64, samples: int = 2048) -> None:"


def new_from_yaml(folder: Path, files: Sequence[Path], *, is_dry: bool = False) -> dict[str, Any]:
    """Tell and, unless it is dry, write what the files become."""
    source = Source(folder, environ={})
    roots = {str(file): _read(source, file) for file in files}
    if len(roots) < len(files):
        raise UsageError("a file is named twice", hint="name each file once")
    translation = translate_files(roots, project=name_project(folder), recipe="recipe:Sine")
    refuse_taken(folder, translation.files)
    texts = dict(translation.files)
    # A recipe that is there already is the one that was meant.
    for name, text in ((RECIPE, _recipe()), (GITIGNORE, read_template(GITIGNORE))):
        if not (folder / name).exists():
            texts[name] = text
    if not is_dry:
        make_files(folder, texts)
    return {
        "format": FORMAT,
        "folder": str(folder),
        "files": [str(folder / name) for name in texts],
        "keys": _keys(translation),
        "notes": list(translation.notes),
        "warnings": source.warnings,
    }


def _read(source: Source, file: Path) -> Node:
    if not file.is_file():
        raise UsageError(f"there is no file {file}", hint="name YAML files of your experiments")
    if not file.stat().st_size:
        return Node(None, Mark(str(file), 1, 1))
    return read_file(source, file)


def _recipe() -> str:
    """The small recipe of a new project, which takes any params."""
    text = read_template(RECIPE)
    assert _KEYWORDS in text
    takes_all = _KEYWORDS.replace(") ->", ", **params: object) ->")
    return text.replace(_KEYWORDS, takes_all).replace(
        "        self.width = width\n", "        self.params = params\n        self.width = width\n"
    )


def _keys(translation: Translation) -> list[dict[str, Any]]:
    return [
        {
            "file": told.mark.file,
            "line": told.mark.line,
            "key": told.key,
            "value": told.value,
            "fate": told.fate,
            "words": told.words,
        }
        for told in translation.told
    ]
