"""`export:` in a spec: in which further files a stage's weights are written, and where.

Pure. `weights.safetensors` in the run's folder is always written; this is about what else is.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, Literal

from tasuki.errors import UsageError

FileFormat = Literal["safetensors", "pt"]
SUFFIXES: dict[str, FileFormat] = {
    ".safetensors": "safetensors",
    ".pt": "pt",
    ".pth": "pt",
    ".bin": "pt",
}
_FORMATS: dict[str, FileFormat] = {"safetensors": "safetensors", "pt": "pt"}
_KEYS = ("format", "to")
_HINT = "write `pt`, `safetensors`, a list of them, or `{format: pt, to: out/model.pt}`"


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """One file to write."""

    format: FileFormat
    to: str | None = None
    """Relative to the spec's folder; None: in the run's folder."""


def parse_export(written: object) -> tuple[Export, ...]:
    """Read `pt`, `[safetensors, pt]`, `{format: pt, to: out/model.pt}`; nothing for None."""
    if written is None:
        return ()
    items = written if isinstance(written, list) else [written]
    if not items:
        raise UsageError("an empty list exports nothing", hint=_HINT)
    return tuple(dict.fromkeys(_one(item) for item in items))


def format_of(path: str, *, told: str | None = None) -> FileFormat:
    """The format a file's name stands for; refused where it contradicts what was told."""
    by_name = SUFFIXES.get(PurePath(path).suffix)
    if by_name is None:
        raise UsageError(
            f"`{path}` does not end like a file of weights",
            hint=f"let it end with {', '.join(SUFFIXES)}",
        )
    if told is not None and _known(told) != by_name:
        raise UsageError(
            f"`{path}` is the name of a {by_name} file, but the format is {told}",
            hint="change one of the two",
        )
    return by_name


def _one(item: object) -> Export:
    if isinstance(item, str):
        return Export(format=_known(item))
    if not isinstance(item, dict) or not item:
        raise UsageError(f"`{item}` says nothing about a file", hint=_HINT)
    return _mapping(item)


def _mapping(item: dict[str, Any]) -> Export:
    for key in item:
        if key not in _KEYS:
            near = difflib.get_close_matches(str(key), _KEYS, n=1)
            raise UsageError(
                f"unknown key `{key}` in `export`",
                hint=f"did you mean `{near[0]}`?" if near else _HINT,
            )
    told, to = item.get("format"), item.get("to")
    if to is None:
        return Export(format=_known(told))
    if not isinstance(to, str) or not to:
        raise UsageError(f"`to` must be a path, not `{to}`", hint=_HINT)
    if to.startswith("~") or "$" in to:
        raise UsageError(f"`~` and `$` do not expand in `to: {to}`", hint="write the path as it is")
    return Export(format=format_of(to, told=told), to=to)


def _known(word: object) -> FileFormat:
    if isinstance(word, str) and word in _FORMATS:
        return _FORMATS[word]
    near = difflib.get_close_matches(str(word).lower(), _FORMATS, n=1)
    raise UsageError(
        f"weights cannot be written as `{word}`",
        hint=f"did you mean `{near[0]}`?" if near else _HINT,
    )
