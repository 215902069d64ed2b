"""Open files that are worked on together, read them once, and refuse those that cannot be used."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tasuki.data.curate.contents import Contents
from tasuki.data.curate.explain import why
from tasuki.data.curate.findings import UNUSABLE, Kind
from tasuki.data.curate.journal import Work
from tasuki.data.curate.scan import Scan, scan_file
from tasuki.data.curate.talk import Talk
from tasuki.data.hdf5.files import find_files, is_hdf5
from tasuki.data.hdf5.layout import refuse_different
from tasuki.errors import DataError, StoreError, UsageError

FIRST = 5
"""So many samples of a kind are named."""


def find(words: Sequence[str]) -> list[Path]:
    """The files that are meant, each once."""
    paths = find_files(list(words), None)
    seen: set[Path] = set()
    for path in paths:
        if path.resolve() in seen:
            raise UsageError(f"`{path}` is given twice", hint="name each file once")
        seen.add(path.resolve())
    return paths


def open_alike(paths: Sequence[Path], *, block_bytes: int) -> tuple[Contents, ...]:
    """Files whose samples consist of the same."""
    files = tuple(Contents(path, block_bytes=block_bytes) for path in paths)
    refuse_different([(file.path, file.layout) for file in files])
    return files


def scan_usable(
    files: Sequence[Contents], *, work: Work | None, talk: Talk, block_bytes: int
) -> list[Scan]:
    """Every file read once; refused if a sample of it cannot be used."""
    scans = scan_all(files, works=[work] * len(files), talk=talk, block_bytes=block_bytes)
    for scan in scans:
        refuse_unusable(scan)
    return scans


def scan_all(
    files: Sequence[Contents], *, works: Sequence[Work | None], talk: Talk, block_bytes: int
) -> list[Scan]:
    total, before, scans = sum(len(file) for file in files), 0, []
    for file, work in zip(files, works, strict=True):
        tell = partial(_tell, talk, before=before, total=total)
        scans.append(scan_file(file, work=work, on_progress=tell, block_bytes=block_bytes))
        before += len(file)
    return scans


def _tell(talk: Talk, done: int, *, before: int, total: int) -> None:
    talk.progress("reading", before + done, total)


def refuse_unusable(scan: Scan) -> None:
    bad = scan.findings[np.isin(scan.findings[:, 1], UNUSABLE)]
    if not len(bad):
        return
    sample, kind, column = bad[np.argmin(bad[:, 0])].tolist()
    num = len(np.unique(bad[:, 0]))
    more = f" (and {num - 1:,} more)" if num > 1 else ""
    path = scan.contents.path
    raise DataError(
        f"sample {sample} of `{path}` cannot be used: "
        f"{why(scan.contents, Kind(kind), column, sample)}{more}",
        hint=f"`tasuki data check {path} --fix` writes a copy without such samples",
    )


def warn_of_nan(scans: Sequence[Scan]) -> list[str]:
    """One sentence per file that has numbers which are none."""
    warnings = []
    for scan in scans:
        found = scan.findings[scan.findings[:, 1] == Kind.NAN]
        if len(found):
            num, names = len(np.unique(found[:, 0])), _names(scan, found)
            warnings.append(
                f"{num:,} sample{'s' if num > 1 else ''} of `{scan.contents.path}` "
                f"hold{'' if num > 1 else 's'} NaN or infinity in {names}; "
                "`tasuki data check` names them"
            )
    return warnings


def _names(scan: Scan, found: Any) -> str:
    columns = scan.contents.columns
    return ", ".join(f"`{columns[number].name}`" for number in np.unique(found[:, 2]).tolist())


def refuse_name(output: Path) -> None:
    if not is_hdf5(output):
        raise UsageError(
            f"`{output}` has no name of an HDF5 file", hint=f"write `{output.with_suffix('.h5')}`"
        )
    if output.is_dir():
        raise UsageError(f"`{output}` is a folder", hint=f"write `{output / 'all.h5'}`")


@contextmanager
def working(folder: Path, talk: Talk, *, is_dry: bool) -> Iterator[Work | None]:
    """The work folder; None where nothing may be written."""
    if is_dry:
        yield None
        return
    work = Work(folder, say=talk.say)
    try:
        yield work
    except DataError:
        if work.writing is None:  # the data are refused: nothing that a later call could use
            work.remove()
        raise
    except (StoreError, UsageError):
        if work.is_blank:
            work.remove()
        raise
    finally:
        work.close()
