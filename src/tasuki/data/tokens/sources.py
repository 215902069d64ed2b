"""Which files are to be tokenised, and how each is read. Their content: blocks.py."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasuki.data.hdf5.files import missing
from tasuki.errors import DataError, UsageError
from tasuki.runs.nearby import look_beside

KINDS = {
    ".txt": "txt",
    ".txt.gz": "txt",
    ".jsonl": "jsonl",
    ".jsonl.gz": "jsonl",
    ".parquet": "parquet",
}
MOST = 100_000
"""Files; each has its line in the index."""
Stamp = list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One file of documents."""

    path: Path
    kind: str
    is_packed: bool
    """By gzip."""
    stamp: Stamp
    """Size, time and inode."""

    @property
    def num_bytes(self) -> int:
        return self.stamp[0]

    def refuse_changed(self) -> None:
        if _stamp_of(self.path) != self.stamp:
            raise DataError(
                f"`{self.path}` changed while it was read",
                hint="run the same command again: it goes on before this file",
            )


def find_sources(words: Sequence[str]) -> list[Source]:
    """The files that are meant, each once, in the order of the words; folders sorted by name."""
    paths = [path for word in words for path in _find(Path(word))]
    seen: set[Path] = set()
    for path in paths:
        if path.resolve() in seen:
            raise UsageError(f"`{path}` is given twice", hint="name each file once")
        seen.add(path.resolve())
    if len(paths) > MOST:
        raise UsageError(
            f"{len(paths):,} files are too many", hint="put several documents into each: jsonl"
        )
    return [_source(path) for path in paths]


def _find(word: Path) -> list[Path]:
    if word.is_dir():
        found = sorted(path for path in word.rglob("*") if _kind(path) and path.is_file())
        found = [path for path in found if not _is_hidden(path, word)]
        if not found:
            raise DataError(
                f"folder `{word}` has no {', '.join(KINDS)} file; {look_beside(word / 'x')}",
                hint="name the files, or another folder",
            )
        return found
    if word.exists():
        return [word]
    if any(char in str(word) for char in "*?["):
        anchor = Path(word.anchor) if word.is_absolute() else Path()
        pattern = str(word.relative_to(anchor)) if word.is_absolute() else str(word)
        matches = sorted(anchor.glob(pattern))
        if not matches:
            raise DataError(f"no file matches `{word}`; {look_beside(word)}", hint="mend it")
        return [path for match in matches for path in _find(match)]
    raise missing(word)


def _is_hidden(path: Path, folder: Path) -> bool:
    return any(part.startswith(".") for part in path.relative_to(folder).parts)


def _kind(path: Path) -> tuple[str, bool] | None:
    name = path.name.lower()
    for suffix, kind in KINDS.items():
        if name.endswith(suffix):
            return kind, suffix.endswith(".gz")
    return None


def _source(path: Path) -> Source:
    found = _kind(path)
    if found is None:
        raise UsageError(
            f"`{path}` is none of {', '.join(KINDS)}",
            hint="convert it, or give it the suffix of what it holds",
        )
    stamp = _stamp_of(path)
    if stamp is None:
        raise missing(path)
    return Source(path=path, kind=found[0], is_packed=found[1], stamp=stamp)


def _stamp_of(path: Path) -> Stamp | None:
    try:
        facts = path.stat()
    except OSError:
        return None
    return [facts.st_size, facts.st_mtime_ns, facts.st_ino]


def told_source(source: Source, counts: dict[str, Any]) -> dict[str, Any]:
    """As the index lists it: nothing of it differs from machine to machine."""
    return {"path": str(source.path), "bytes": source.num_bytes, **counts}
