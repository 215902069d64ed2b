"""Which files a data source means: a file, a folder with one per split, a pattern, or a list."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tasuki.errors import DataError
from tasuki.runs.nearby import look_beside

SUFFIXES = (".h5", ".hdf5", ".hdf")


def is_hdf5(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES


def find_files(source: str | Path | Sequence[str | Path], split: str | None) -> list[Path]:
    """The files of a source, in a fixed order. A folder gives its `<split>.h5`.

    Without a split a folder gives all its files.
    """
    if isinstance(source, str | Path):
        return _find(Path(source), split)
    if not source:
        raise DataError("no file of data is named", hint="name at least one under `data:`")
    return [path for one in source for path in _find(Path(one), split)]


def find_sources(patterns: Sequence[str], split: str) -> list[Path]:
    """The data sets that patterns mean: files, and folders that have a file of the split."""
    found: dict[Path, None] = {}
    for pattern in patterns:
        matches = _matches(Path(pattern)) if _is_pattern(Path(pattern)) else [Path(pattern)]
        usable = [path for path in matches if _is_source(path, split)]
        if not usable:
            _find(Path(pattern), split)  # says what is wrong with it
            raise DataError(
                f"`{pattern}` matches no HDF5 file",
                hint="`stages: auto` reads sizes from HDF5 files; for other data list the stages",
            )
        found.update(dict.fromkeys(usable))
    return list(found)


def _is_source(path: Path, split: str) -> bool:
    if path.is_dir():
        return any((path / f"{split}{suffix}").is_file() for suffix in SUFFIXES)
    return path.is_file() and is_hdf5(path)


def _is_pattern(source: Path) -> bool:
    return any(char in str(source) for char in "*?[") and not source.exists()


def _find(source: Path, split: str | None) -> list[Path]:
    if _is_pattern(source):
        return [path for one in _matches(source) for path in _find(one, split)]
    if source.is_dir():
        return _in_folder(source, split)
    if not source.exists():
        raise missing(source)
    return [source]


def _matches(pattern: Path) -> list[Path]:
    anchor = Path(pattern.anchor) if pattern.is_absolute() else Path()
    parts = pattern.relative_to(anchor) if pattern.is_absolute() else pattern
    found = sorted(anchor.glob(str(parts)))
    if not found:
        raise DataError(
            f"no file matches `{pattern}`; {look_beside(pattern)}",
            hint="check the pattern; in a spec it is relative to the spec's folder",
        )
    return found


def _in_folder(folder: Path, split: str | None) -> list[Path]:
    present = sorted(path for path in folder.iterdir() if is_hdf5(path) and path.is_file())
    chosen = [path for path in present if split in (None, path.stem)]
    if chosen:
        return chosen
    has = ", ".join(path.name for path in present[:6])
    lacks = f"no `{split}.h5`; it has {has}" if has else "no HDF5 file"
    raise DataError(
        f"folder `{folder}` has {lacks}",
        hint="`tasuki data split FILE` makes train.h5, val.h5 and test.h5",
    )


def missing(source: Path) -> DataError:
    """What to say about a path that does not exist."""
    return DataError(
        f"data `{source}` do not exist; {look_beside(source)}",
        hint="mend the path, or make the data: by the project's own generator, `tasuki data merge` "
        "or `tasuki data split`",
    )
