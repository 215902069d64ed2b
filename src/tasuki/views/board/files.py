"""The page's own files, read once: what is not in this list cannot be asked for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable

_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}


@dataclass(frozen=True, slots=True)
class PageFile:
    data: bytes
    kind: str


def page_files() -> dict[str, PageFile]:
    """By path below `static`."""
    return dict(_walk(resources.files("tasuki.views.board") / "static", ""))


def _walk(folder: Traversable, above: str) -> Iterator[tuple[str, PageFile]]:
    for entry in folder.iterdir():
        ending = entry.name.rpartition(".")[2]
        if entry.is_dir():
            yield from _walk(entry, f"{above}{entry.name}/")
        elif ending in _TYPES:
            yield f"{above}{entry.name}", PageFile(entry.read_bytes(), _TYPES[ending])
