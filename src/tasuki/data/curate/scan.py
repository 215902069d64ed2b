"""Read every sample of a file once: a digest of its content, and what is wrong with it.

A digest is part of what `data split` promises (a sample keeps its part), so its definition must
never change:

    blake2b, 16 bytes, person "tasuki sample", of
    n                                  8 bytes; all numbers signed, 8 bytes, little-endian
    for each column, sorted by name:
      length of the name, the name, length of the type's code, the code ("<f4")
      number of dimensions, the dimensions
      the values, in row-major order, little-endian

It does not know how a file keeps its samples (rows, flat, groups): the same sample has the same
digest in all of them. Keeps what it found in the work folder (journal.py) where there is one, and
goes on from there.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tasuki.data.curate.contents import Block, Contents, Piece
from tasuki.data.curate.findings import Findings, Kind, found_at, no_findings
from tasuki.data.curate.journal import Work
from tasuki.data.hdf5.layout import Column

Digests = NDArray[np.uint64]
"""Two words per sample."""

OnProgress = Callable[[int], None]

DIGEST_BYTES = 16
_KEEP_EVERY = 8
"""Blocks between two writes of the journal."""
_SMALL = 4096
"""Bytes of a sample up to which joining its parts is cheaper than hashing them one by one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """One file after it was read."""

    contents: Contents
    digests: Digests
    findings: Findings

    def __len__(self) -> int:
        return len(self.contents)


def scan_file(
    contents: Contents,
    *,
    work: Work | None = None,
    on_progress: OnProgress = lambda _: None,
    block_bytes: int,
) -> Scan:
    """Read all samples, or those that an earlier, interrupted scan had not come to."""
    digests = np.zeros((len(contents), 2), dtype=np.uint64)
    done, found = 0, [known_at_once(contents)]
    if work is not None:
        done, kept, earlier = work.kept_scan(contents.path, contents.stamp)
        digests[:done] = kept
        found.append(earlier)
    fresh, num_bytes = [no_findings()], 0
    for block in contents.blocks(done):
        digests[block.begin : block.end] = digest_block(block, contents)
        fresh.append(look_at(block, contents))
        num_bytes += block.num_bytes
        if num_bytes >= _KEEP_EVERY * block_bytes or block.end == len(contents):
            found.append(np.concatenate(fresh))
            if work is not None:
                work.keep_scan(contents.path, digests[done : block.end], found[-1])
            done, fresh, num_bytes = block.end, [no_findings()], 0
        on_progress(block.end)
    return Scan(contents=contents, digests=digests, findings=np.concatenate(found))


def known_at_once(contents: Contents) -> Findings:
    """What sizes and offsets show before any sample is read."""
    found = [found_at(np.flatnonzero(contents.sizes < 1), Kind.SIZE)]
    for number, column in enumerate(contents.columns):
        if column.kind == "flat":
            bad = contents.bad_offsets[column.name]
            empty = (contents.lengths(column.name) == 0) & ~contents.unsafe
            found.append(found_at(np.flatnonzero(bad), Kind.OFFSETS, number))
            found.append(found_at(np.flatnonzero(empty), Kind.EMPTY, number))
    return np.concatenate(found)


def look_at(block: Block, contents: Contents) -> Findings:
    """What only the samples themselves show."""
    found = []
    for kind in (Kind.UNREADABLE, Kind.GROUP):
        found.append(found_at(block.begin + np.flatnonzero(block.failed == kind), kind))
    for number, (column, piece) in enumerate(zip(contents.columns, block.pieces, strict=True)):
        good = block.failed == 0
        if column.dtype.kind in "fc":
            bad = _not_finite(piece, column, len(block)) & good
            found.append(found_at(block.begin + np.flatnonzero(bad), Kind.NAN, number))
        if column.kind == "groups":
            empty = (np.diff(piece.bounds) == 0) & good
            found.append(found_at(block.begin + np.flatnonzero(empty), Kind.EMPTY, number))
    return np.concatenate(found)


def _not_finite(piece: Piece, column: Column, num_samples: int) -> NDArray[np.bool_]:
    bad = np.zeros(num_samples, dtype=bool)
    is_finite = np.isfinite(piece.data.view(column.dtype))
    if not is_finite.all():
        places = np.flatnonzero(~is_finite) * column.dtype.itemsize
        bad[np.searchsorted(piece.bounds, places, side="right") - 1] = True
    return bad


def digest_block(block: Block, contents: Contents) -> Digests:
    """The digest of each sample; nothing in particular for those that failed."""
    columns = [
        (_Names(column), piece.data.data, piece.bounds.tolist(), piece.shapes)
        for column, piece in zip(contents.columns, block.pieces, strict=True)
    ]
    sizes = contents.sizes[block.begin : block.end].tolist()
    empty = hashlib.blake2b(digest_size=DIGEST_BYTES, person=b"tasuki sample")
    found = []
    for i, size in enumerate(sizes):
        parts: list[bytes | memoryview] = [struct.pack("<q", size)]
        for names, data, bounds, shapes in columns:
            parts.append(names[shapes[i]])
            parts.append(data[bounds[i] : bounds[i + 1]])
        digest = empty.copy()
        if sum(len(part) for part in parts) <= _SMALL:
            digest.update(b"".join(parts))
        else:
            for part in parts:
                digest.update(part)
        found.append(digest.digest())
    return np.frombuffer(b"".join(found), dtype="<u8").reshape(-1, 2).astype(np.uint64)


class _Names(dict[tuple[int, ...], bytes]):
    """What stands before the values of a column, by the sample's shape."""

    def __init__(self, column: Column) -> None:
        super().__init__()
        name, code = column.name.encode(), column.dtype.str.encode()
        self._column = b"".join(struct.pack("<q", len(text)) + text for text in (name, code))

    def __missing__(self, shape: tuple[int, ...]) -> bytes:
        words = self._column + struct.pack(f"<{1 + len(shape)}q", len(shape), *shape)
        self[shape] = words
        return words
