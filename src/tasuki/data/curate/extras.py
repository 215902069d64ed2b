"""What a file holds besides its samples: attributes, single values, other groups.

Copied with the samples, so that units or a mean that someone noted in a file are not lost. Where
several files become one, only what is the same in all of them is kept; the rest is named.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from tasuki.data.curate.contents import Contents
from tasuki.data.curate.groups import FAILURES
from tasuki.data.hdf5.layout import GROUPS, OFFSETS, SIZES

Extra = tuple[str | None, str]
"""(None, a data set or group) or (owner, one of its attributes); the owner "/" is the file."""

_OF_HDF5 = {"CLASS", "NAME", "DIMENSION_LIST", "REFERENCE_LIST", "_Netcdf4Dimid"}
"""Attributes that point into their own file."""
_SLAB = 16 << 20


def extras_of(contents: Contents) -> list[Extra]:
    """All extras of one file, but those of single samples."""
    file = contents.handle
    taken = {SIZES, GROUPS}
    for column in contents.columns:
        if column.kind != "groups":
            taken |= {column.name} | ({column.name + OFFSETS} & set(file))
    found: list[Extra] = [(None, name) for name in file if name not in taken]
    for owner in ["/", *sorted(taken & set(file))]:
        found += [(owner, name) for name in _attributes(file[owner])]
    return found


def shared_extras(files: Sequence[Contents]) -> tuple[list[Extra], list[Extra]]:
    """(Extras that are the same in all files, all others)."""
    if len(files) == 1:
        return extras_of(files[0]), []
    found = [{extra: _digest(file, extra) for extra in extras_of(file)} for file in files]
    every = {extra: None for extras in found for extra in extras}
    same = [extra for extra in every if len({extras.get(extra) for extras in found}) == 1]
    return same, [extra for extra in every if extra not in same]


def copy_extras(source: Contents, target: Any, extras: Sequence[Extra]) -> list[Extra]:
    """Into an open file that has its data sets; those that could not be copied."""
    failed = []
    for owner, name in extras:
        try:
            if owner is None:
                source.handle.copy(name, target, name=name)
            else:
                target[owner].attrs[name] = source.handle[owner].attrs[name]
        except FAILURES:
            failed.append((owner, name))
    return failed


def copy_sample_extras(source: Contents, index: int, target: Any) -> None:
    """Attributes of one sample's group and of its data sets, and what is no number in it."""
    group = source.handle[f"{GROUPS}/{index}"]
    for name in _attributes(group):
        target.attrs[name] = group.attrs[name]
    for name in group:
        if name not in target:
            group.copy(name, target, name=name)
        else:
            for attribute in _attributes(group[name]):
                target[name].attrs[attribute] = group[name].attrs[attribute]


def told(extra: Extra) -> str:
    owner, name = extra
    if owner is None:
        return f"`{name}`"
    return f"attribute `{name}`" + (f" of `{owner}`" if owner != "/" else "")


def _attributes(item: Any) -> list[str]:
    return [name for name in item.attrs if name not in _OF_HDF5]


def _digest(contents: Contents, extra: Extra) -> str:
    owner, name = extra
    digest = hashlib.sha256()
    try:
        if owner is not None:
            _add_value(digest, contents.handle[owner].attrs[name])
        else:
            _add_item(digest, contents.handle[name])
    except FAILURES:
        return f"unreadable in {contents.path}"
    return digest.hexdigest()


def _add_item(digest: Any, item: Any) -> None:
    for name in sorted(_attributes(item)):
        digest.update(name.encode())
        _add_value(digest, item.attrs[name])
    if not hasattr(item, "dtype"):
        for name in sorted(item):
            digest.update(f"/{name}".encode())
            _add_item(digest, item[name])
        return
    digest.update(f"{item.dtype}{item.shape}".encode())
    if not item.shape:
        _add_value(digest, item[()])
        return
    rows = max(1, _SLAB // max(1, item.nbytes // max(1, item.shape[0])))
    for begin in range(0, item.shape[0], rows):
        _add_value(digest, item[begin : begin + rows])


def _add_value(digest: Any, value: Any) -> None:
    array = np.asarray(value)
    digest.update(f"{array.dtype}{array.shape}".encode())
    digest.update(repr(array.tolist()).encode() if array.dtype.hasobject else array.tobytes())
