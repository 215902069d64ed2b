"""The copy of the project's code in a run folder: has anybody edited it since it was taken?

A run goes on with the code it began with; an edited copy would change what is learnt without a
word. The copy's hash stands in `spec.json`; a list of its files lies in the copy itself, so that
both are put in place by one rename, and tells which file it was. Used by commands/freeze.py, which
takes the copy, and by every rank's start.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from tasuki.runs.atomic import (
    FORMAT,
    read_json,
    read_json_or_none,
    shaped,
    translated,
    write_json,
)
from tasuki.runs.runs import RunFolder

LIST = ".tasuki-files.json"
_CODE = (".py", ".pyi")
_SHOWN = 3


def digest_sources(files: Iterable[tuple[str, bytes]]) -> str:
    """Of names and contents, in ascending order of names."""
    digest = hashlib.sha256()
    for name, data in files:
        digest.update(f"{name}\0{len(data)}\0".encode() + data)
    return digest.hexdigest()


def write_list(folder: Path, files: Mapping[str, bytes]) -> None:
    """Beside the copied files, before the copy is put in place."""
    hashes = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    write_json(folder / LIST, {"format": FORMAT, "files": hashes})


def find_edits(run: RunFolder) -> list[str]:
    """What is not as it was when the copy was taken, in words.

    Files that the recipe itself has written beside its code are no edits, unless they are code.
    """
    with shaped(run.spec):
        expected = str(read_json(run.spec)["fingerprints"]["code"])
    listed, files = _read_list(run), read_sources(run)
    if listed is None:  # a copy of an earlier tasuki
        return [] if digest_sources(files.items()) == expected else ["it is not what it was"]
    found = [f"{name} is gone" for name in listed if name not in files]
    found += [f"{name} is new" for name in files if name not in listed]
    found += [
        f"{name} was edited"
        for name, data in files.items()
        if name in listed and hashlib.sha256(data).hexdigest() != listed[name]
    ]
    if not found and digest_sources(files.items()) != expected:
        found.append("it is another copy than `spec.json` tells of")
    return found


def edited_words(run: RunFolder, edits: list[str]) -> str:
    more = f" and {len(edits) - _SHOWN} more" if len(edits) > _SHOWN else ""
    told = ", ".join(edits[:_SHOWN]) + more
    return f"the code that run `{run.name}` began with was changed in {run.code}: {told}"


def edited_hint(run: RunFolder) -> str:
    resume = f"`tasuki resume {run.name}"
    return (
        f"put it back; or go on with it: {resume} --accept-change code`; or with the project's "
        f"code as it is now: {resume} --code current`"
    )


def read_sources(run: RunFolder) -> dict[str, bytes]:
    """The copy as it is now, by name: what was copied and is still there, and what is code."""
    listed = _read_list(run)
    found: list[Path] = []
    with translated(run.code):
        for root, folders, names in os.walk(run.code):
            folders[:] = [name for name in folders if name != "__pycache__"]
            found += [Path(root, name).relative_to(run.code) for name in names if name != LIST]
        # Sorted as the copy was: by the parts of the paths.
        return {
            str(path): (run.code / path).read_bytes()
            for path in sorted(found)
            if listed is None or str(path) in listed or path.suffix in _CODE
        }


def _read_list(run: RunFolder) -> dict[str, str] | None:
    path = run.code / LIST
    value = read_json_or_none(path)
    if value is None:
        return None
    with shaped(path):
        return {str(name): str(sha256) for name, sha256 in value["files"].items()}
