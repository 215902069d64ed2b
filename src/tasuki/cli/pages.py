"""Pages that verbs write: where they may go. A page of before is replaced, anything else is not."""

from __future__ import annotations

from pathlib import Path

import click

from tasuki.errors import UsageError


def refuse_place(page: Path) -> None:
    """Raises where a page must not be written."""
    if not page.parent.is_dir():
        raise UsageError(f"there is no folder {page.parent} for {page.name}", hint="make it first")
    if page.exists() and not (page.is_file() and _is_page(page)):
        raise UsageError(
            f"{page} is there and is no HTML page: it is not replaced", hint="give another name"
        )


def _is_page(path: Path) -> bool:
    with path.open("rb") as file:
        start = file.read(512).lstrip().lower()
    return not start or start.startswith((b"<!doctype html", b"<html"))


def write_page(page: Path, text: str) -> None:
    from tasuki.runs.atomic import write_bytes

    write_bytes(page, text.encode("utf-8"))
    click.echo(f"wrote {page}", err=True)
