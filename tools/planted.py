"""The catalogue of planted bugs, `planted.toml`: read it, choose rows, and change a source text."""

from __future__ import annotations

import itertools
import os
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec

PLANTED = Path(__file__).with_suffix(".toml")
_TIMES = itertools.count(1)


class PlantError(Exception):
    """A row or the command line cannot be used. Exit code 2."""


class Bug(msgspec.Struct, forbid_unknown_fields=True, rename={"origin": "from"}, kw_only=True):
    """One row. The head of planted.toml tells what the keys mean."""

    name: str
    package: str
    file: str
    old: str
    new: str
    why: str
    origin: Literal["changelog", "mistake"]
    tests: list[str]
    caught: Literal["quick", "full", "none"] = "quick"


def read_bugs(path: Path = PLANTED, names: Sequence[str] = ()) -> list[Bug]:
    """Those of these names; without names all."""
    bugs: dict[str, Bug] = {}
    for row in tomllib.loads(path.read_text())["bug"]:
        try:
            bug = msgspec.convert(row, Bug)
        except msgspec.ValidationError as error:
            raise PlantError(f"{row.get('name', 'a row without a name')}: {error}") from None
        if bugs.setdefault(bug.name, bug) is not bug:
            raise PlantError(f"{bug.name}: two rows have this name")
    if unknown := set(names) - set(bugs):
        raise PlantError(f"unknown bug: {', '.join(sorted(unknown))}")
    return [bug for bug in bugs.values() if not names or bug.name in names]


def plant(bug: Bug, source: str) -> str:
    """The source of `bug.file` with the bug."""
    if (count := source.count(bug.old)) != 1:
        raise PlantError(f"{bug.name}: `old` is {count} times in {bug.file}, not once")
    return source.replace(bug.old, bug.new)


def write_source(path: Path, source: str) -> None:
    """Replace a module so that Python sees it, whatever .pyc there is."""
    path.write_text(source)
    # Python takes a .pyc for fresh by size and whole seconds, and a bug may change neither.
    os.utime(path, (time := next(_TIMES), time))
