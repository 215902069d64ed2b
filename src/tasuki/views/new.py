"""What became of each key of files that were translated: told on stderr, grouped by key."""

from __future__ import annotations

from pathlib import PurePath
from typing import Any

from rich.console import Console

from tasuki.spec.spelling import spell
from tasuki.views.text import say, warn

_TITLES = {
    "translated": "translated:",
    "param": "handed to the recipe as `params`:",
    "none": "without a counterpart:",
}
_SHOWN = 3


def show_translation(made: dict[str, Any], *, console: Console | None = None) -> None:
    console = console or Console(stderr=True)
    for fate, title in _TITLES.items():
        groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
        for key in made["keys"]:
            if key["fate"] == fate:
                groups.setdefault((key["key"], key["words"]), []).append(key)
        if groups:
            say(console, title)
        for (name, words), keys in groups.items():
            say(console, f"  {_line(fate, name, words, keys)}")
    for note in made["notes"]:
        say(console, note, label="note:")
    for warning in made["warnings"]:
        warn(console, warning)


def _line(fate: str, name: str, words: str, keys: list[dict[str, Any]]) -> str:
    values = {spell(key["value"]) for key in keys}
    shown = f"{name}: {_shorten(values.pop())}" if len(values) == 1 else name
    link = " → " if fate == "translated" else " – "
    said = f"{shown}{link if words else ''}{words}"
    return f"{said} ({_places(keys)})"


def _shorten(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:40]}…"


def _places(keys: list[dict[str, Any]]) -> str:
    """`exp1.yaml:4, exp2.yaml:4 and 6 more`."""
    places = [f"{PurePath(key['file']).name}:{key['line']}" for key in keys]
    more = len(places) - _SHOWN
    if more <= 1:
        return ", ".join(places)
    return f"{', '.join(places[:_SHOWN])} and {more} more"
