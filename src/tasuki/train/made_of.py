"""Which files of code recipes are made of: answers that are kept hold while these are the same.

Of packages that are installed the versions count (commands/kept.py), not the files. Used by
children whose answers are kept.
"""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def code_of(recipes: Sequence[Any], folder: Path) -> dict[str, str]:
    """Digests of the recipes' files and of whatever they have imported from the spec's folder."""
    files = {Path(inspect.getfile(type(recipe))) for recipe in recipes}
    for module in list(sys.modules.values()):
        path = getattr(module, "__file__", None)
        if path is not None and Path(path).is_relative_to(folder.resolve()):
            files.add(Path(path))
    return {
        str(file): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(files)
        if file.is_file() and "site-packages" not in file.parts
    }
