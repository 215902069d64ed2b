"""What lies beside a run's checkpoints, and which of it nobody needs any more.

Drafts that were never published, removals that were cut short, damaged checkpoints set aside, and
files of frozen parameters. A running attempt sweeps its own way (`commit`, `retention`, `frozen`).
Needs no torch.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tasuki.checkpoint.manifest import parse_name
from tasuki.checkpoint.retention import QUARANTINE
from tasuki.checkpoint.verify import frozen_folder
from tasuki.runs.atomic import translated
from tasuki.runs.claims import ensure_claim_holds
from tasuki.runs.runs import RunFolder

_TRASH = ".trash-"
_KINDS = {".draft-": "draft", _TRASH: "trash", QUARANTINE: "quarantined"}
_SUFFIX = re.compile(r"-[0-9a-f]+$", re.ASCII)


@dataclass(frozen=True, slots=True)
class Leftover:
    """Something in `checkpoints/` that is no checkpoint."""

    kind: str
    """draft, trash, quarantined or frozen."""
    path: Path
    num_bytes: int
    claim: int | None = None
    """Whose it is, where its name tells."""
    is_needed: bool = False
    """A file of frozen parameters that a checkpoint refers to."""

    @property
    def name(self) -> str:
        return f"frozen/{self.path.name}" if self.kind == "frozen" else self.path.name


def list_leftovers(run: RunFolder, *, needed: Iterable[str]) -> list[Leftover]:
    """All of it. `needed` are the frozen files that checkpoints refer to."""
    names = _names(run.checkpoints)
    found = []
    for prefix, kind in _KINDS.items():
        for name in sorted(n for n in names if n.startswith(prefix)):
            path = run.checkpoints / name
            found.append(Leftover(kind, path, measure(path), _claim_of(name)))
    wanted, folder = set(needed), frozen_folder(run.checkpoints)
    for name in sorted(_names(folder)):
        path = folder / name
        kind = "draft" if name.endswith(".tmp") else "frozen"
        found.append(Leftover(kind, path, measure(path), is_needed=name in wanted))
    return found


def is_superseded(leftover: Leftover, *, claim: int, is_complete: bool) -> bool:
    """May a person remove it while nobody works on the run?

    A rank whose supervisor died still hands over: a draft of the highest claim may become a
    checkpoint yet, unless the run is complete.
    """
    if leftover.kind in ("trash", "quarantined"):
        return True
    if leftover.kind == "frozen":
        return not leftover.is_needed
    return is_complete or (leftover.claim is not None and leftover.claim < claim)


def remove(run: RunFolder, path: Path, *, claim: int) -> int:
    """Out of sight by a rename first, then away; how many bytes that gave. What is gone is gone."""
    ensure_claim_holds(run, claim)
    trash = _trash_for(run, path) if not path.name.startswith(_TRASH) else path
    size = measure(path)
    with translated(path):
        try:
            if trash != path:
                path.rename(trash)
        except FileNotFoundError:
            return 0
    shutil.rmtree(trash, ignore_errors=True)
    with contextlib.suppress(OSError):
        trash.unlink()  # no folder, but a half-written file of frozen parameters
    return size - measure(trash)


def remove_frozen(run: RunFolder, path: Path, *, claim: int) -> int:
    """Remove a file that no checkpoint refers to, unless somebody came who might use it.

    A new attempt may find the file there and refer to it in its first checkpoint. So it is only put
    aside first; if a claim was taken by then, it is put back.
    """
    ensure_claim_holds(run, claim)
    trash, size = _trash_for(run, path), measure(path)
    with translated(path):
        try:
            path.rename(trash)
        except FileNotFoundError:
            return 0
        try:
            ensure_claim_holds(run, claim)
        except BaseException:
            with contextlib.suppress(FileExistsError):
                os.link(trash, path)
            trash.unlink()
            raise
        trash.unlink()
    return size


def measure(path: Path) -> int:
    """Bytes of a file, or of all files in a folder; none of what is gone. Follows no links."""
    try:
        found = path.lstat()
        if not stat.S_ISDIR(found.st_mode):
            return found.st_size
        return sum(measure(path / name) for name in os.listdir(path))
    except (FileNotFoundError, NotADirectoryError):
        return 0
    except OSError as error:
        with translated(path):
            raise error


def _trash_for(run: RunFolder, path: Path) -> Path:
    return run.checkpoints / f"{_TRASH}{path.name.lstrip('.')}-{secrets.token_hex(4)}"


def _names(folder: Path) -> list[str]:
    with translated(folder):
        try:
            return os.listdir(folder)
        except (FileNotFoundError, NotADirectoryError):
            return []


def checkpoint_in(name: str) -> str | None:
    """The checkpoint that a draft, a trash or a quarantined folder was, or was to become."""
    bare = name
    for prefix in _KINDS:
        bare = bare.removeprefix(prefix)
    return next((some for some in (bare, _SUFFIX.sub("", bare)) if parse_name(some)), None)


def _claim_of(name: str) -> int | None:
    parsed = parse_name(checkpoint_in(name) or "")
    return parsed.claim if parsed else None
