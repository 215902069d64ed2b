"""Which files a data source means: a file, a folder with one per split, a pattern, or a list."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path

from tasuki.errors import DataError

SUFFIXES = (".h5", ".hdf5", ".hdf")


def is_hdf5(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES


def find_files(source: str | Path | Sequence[str | Path], split: str | None) -> list[Path]:
    """The files of a source, in a fixed order. A folder gives its `<split>.h5`.

    Without a split a folder gives all its files.
    """
    if isinstance(source, str | Path):
        return _find(Path(source), split)
    return [path for one in source for path in _find(Path(one), split)]


def _find(source: Path, split: str | None) -> list[Path]:
    if any(char in str(source) for char in "*?[") and not source.exists():
        return _glob(source, split)
    if source.is_dir():
        return _in_folder(source, split)
    if not source.exists():
        raise missing(source)
    return [source]


def _glob(pattern: Path, split: str | None) -> list[Path]:
    anchor = Path(pattern.anchor) if pattern.is_absolute() else Path()
    parts = pattern.relative_to(anchor) if pattern.is_absolute() else pattern
    found = sorted(anchor.glob(str(parts)))
    if not found:
        raise DataError(
            f"no file matches `{pattern}`",
            hint="check the pattern; relative paths are relative to the spec's folder",
        )
    return [path for one in found for path in _find(one, split)]


def _in_folder(folder: Path, split: str | None) -> list[Path]:
    present = sorted(path for path in folder.iterdir() if is_hdf5(path) and path.is_file())
    chosen = [path for path in present if split in (None, path.stem)]
    if chosen:
        return chosen
    wanted = f"`{split}.h5`" if split is not None else "HDF5 file"
    has = ", ".join(path.name for path in present[:6]) or "no HDF5 file at all"
    raise DataError(
        f"folder `{folder}` has no {wanted}; it has {has}",
        hint="`tasuki data split FILE` makes train.h5, val.h5 and test.h5",
    )


def missing(source: Path) -> DataError:
    """What to say about a path that does not exist: the nearest name beside it."""
    folder = source.parent
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    near = difflib.get_close_matches(source.name, names, n=1)
    if near:
        hint = f"did you mean `{folder / near[0]}`?"
    elif folder.is_dir():
        hint = (
            f"`{folder}` has {', '.join(names[:6]) or 'nothing in it'}; check `data:` in the spec"
        )
    else:
        hint = f"the folder `{folder}` does not exist either; check `data:` in the spec"
    return DataError(f"data `{source}` does not exist", hint=hint)
