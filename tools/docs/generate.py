"""Which pages are made from code."""

from __future__ import annotations

from collections.abc import Callable

from tools.docs.exit_codes_page import exit_codes_page
from tools.docs.files_page import files_page
from tools.docs.json_page import json_page
from tools.docs.pages import DOCS
from tools.docs.python_page import python_page
from tools.docs.spec_page import spec_page
from tools.docs.verbs_page import verbs_page

GENERATED: dict[str, Callable[[], str]] = {
    "reference/verbs.md": verbs_page,
    "reference/spec.md": spec_page,
    "reference/json.md": json_page,
    "reference/files.md": files_page,
    "reference/exit-codes.md": exit_codes_page,
    "reference/python.md": python_page,
}


def stale() -> list[str]:
    """Pages that are not what the code says now."""
    return [name for name, make in GENERATED.items() if _written(name) != make()]


def _written(name: str) -> str:
    path = DOCS / name
    return path.read_text(encoding="utf-8") if path.exists() else ""


def write() -> list[str]:
    """Those that changed."""
    changed = stale()
    for name in changed:
        path = DOCS / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(GENERATED[name](), encoding="utf-8")
    return changed
