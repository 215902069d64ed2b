"""What is wrong with one sample, in words. Looked at again when it is told: few are."""

from __future__ import annotations

import numpy as np

from tasuki.data.curate.contents import Contents
from tasuki.data.curate.findings import Kind
from tasuki.data.hdf5.layout import OFFSETS


def why(contents: Contents, kind: Kind, column: int, sample: int) -> str:
    """The words for a finding of one sample (its number in the file)."""
    name = contents.columns[column].name if column >= 0 else ""
    match kind:
        case Kind.SIZE:
            return f"its size `n` is {contents.sizes[sample]}"
        case Kind.EMPTY:
            return f"no rows in `{name}`"
        case Kind.OFFSETS:
            begin, end = contents.offsets[name][sample : sample + 2].tolist()
            return (
                f"`{name}{OFFSETS}` gives it the rows {begin} to {end} of {contents.length(name)}"
                + _neighbours(contents, name, begin, end)
            )
        case Kind.NAN:
            return _count_nan(contents, column, sample)
        case _:
            return contents.why_unreadable(sample)


def _neighbours(contents: Contents, name: str, begin: int, end: int) -> str:
    looks_right = 0 <= begin <= end <= contents.length(name)
    return ", and those beside it go back" if looks_right else ""


def _count_nan(contents: Contents, column: int, sample: int) -> str:
    piece = contents.block(sample, sample + 1).pieces[column]
    values = piece.data.view(contents.columns[column].dtype)
    num = int(values.size - np.isfinite(values).sum())
    return f"{num:,} of {values.size:,} numbers in `{contents.columns[column].name}`"
