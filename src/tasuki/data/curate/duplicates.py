"""Samples whose content is the same, byte for byte, over any number of files.

Digests only propose: two samples are called the same after their bytes were compared. Only numpy
arrays are kept, 16 bytes per sample for the digest and 16 per pair found.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasuki.data.curate.contents import Block, Contents
from tasuki.data.curate.findings import UNUSABLE
from tasuki.data.curate.journal import Work
from tasuki.data.curate.scan import Scan
from tasuki.data.curate.talk import OnProgress
from tasuki.data.hdf5.reader import Ints


def find_duplicates(
    scans: Sequence[Scan],
    *,
    work: Work | None = None,
    on_progress: OnProgress = lambda *_: None,
) -> Ints:
    """Pairs (later, earlier) of equal samples, by the later one.

    Samples are numbered over all files. The earlier one is always the first of its kind.
    """
    digests = np.concatenate([scan.digests for scan in scans])
    usable = np.concatenate([~unusable(scan) for scan in scans])
    key = _key(digests, usable)
    if work is not None and (kept := work.kept_pairs(key)) is not None:
        return kept
    pairs = candidates(digests, usable)
    if len(pairs):
        pairs = pairs[_are_equal([scan.contents for scan in scans], pairs, on_progress)]
    if work is not None:
        work.keep_pairs(key, pairs)
    return pairs


def told_pair(scans: Sequence[Scan], pair: Ints) -> dict[str, Any]:
    """A pair as `--json` shows it."""
    files = [scan.contents for scan in scans]
    (later, sample), (earlier, same_sample) = (_place(s, files) for s in pair.tolist())
    return {
        "file": str(later.path),
        "sample": sample,
        "same_file": str(earlier.path),
        "same_sample": same_sample,
    }


def _key(*arrays: NDArray[Any]) -> str:
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def unusable(scan: Scan) -> NDArray[np.bool_]:
    """Samples without content that could be compared or written."""
    marked = np.zeros(len(scan), dtype=bool)
    marked[scan.findings[np.isin(scan.findings[:, 1], UNUSABLE), 0]] = True
    return marked


def candidates(digests: NDArray[np.uint64], usable: NDArray[np.bool_]) -> Ints:
    """Pairs of samples with one digest, as `find_duplicates` gives them."""
    samples = np.flatnonzero(usable)
    # Stable, by both words: of equal digests the earlier sample stays first.
    samples = samples[np.lexsort((digests[samples, 1], digests[samples, 0]))]
    is_new = np.ones(len(samples), dtype=bool)
    is_new[1:] = (digests[samples[1:]] != digests[samples[:-1]]).any(axis=1)
    firsts = samples[np.maximum.accumulate(np.where(is_new, np.arange(len(samples)), 0))]
    pairs = np.stack([samples, firsts], axis=1)[~is_new].astype(np.int64)
    return pairs[np.argsort(pairs[:, 0], kind="stable")]


def _are_equal(
    files: Sequence[Contents], pairs: Ints, on_progress: OnProgress
) -> NDArray[np.bool_]:
    starts = np.concatenate([[0], np.cumsum([len(file) for file in files])])
    equal = np.zeros(len(pairs), dtype=bool)
    for begin, end in _runs(pairs, starts):
        done = begin
        while done < end:
            later, earlier = (_place(sample, files) for sample in pairs[done].tolist())
            found = _compare(later, earlier, end - done)
            equal[done : done + len(found)] = found
            done += len(found)
            on_progress("comparing", done, len(pairs))
    return equal


def _runs(pairs: Ints, starts: Ints) -> Iterator[tuple[int, int]]:
    """Pairs that follow each other on both sides are read together: copies of whole files do."""
    files = np.searchsorted(starts, pairs, side="right")
    follows = (np.diff(pairs, axis=0) == 1).all(axis=1) & (np.diff(files, axis=0) == 0).all(axis=1)
    cuts = [0, *(np.flatnonzero(~follows) + 1).tolist(), len(pairs)]
    yield from pairwise(cuts)


def _place(sample: int, files: Sequence[Contents]) -> tuple[Contents, int]:
    for file in files:
        if sample < len(file):
            return file, sample
        sample -= len(file)
    raise AssertionError(sample)


def _compare(later: tuple[Contents, int], earlier: tuple[Contents, int], most: int) -> list[bool]:
    """Whether each of some pairs that follow each other is equal; at least one, at most a block."""
    (one_file, one_begin), (other_file, other_begin) = later, earlier
    one = one_file.block(one_begin, one_begin + most)
    other = other_file.block(other_begin, other_begin + len(one))
    num = min(len(one), len(other))
    if _types(one_file) != _types(other_file):
        return [False] * num
    sizes = one_file.sizes[one_begin : one_begin + num]
    same_sizes = sizes == other_file.sizes[other_begin : other_begin + num]
    return [bool(same_sizes[i]) and _same(one, other, i) for i in range(num)]


def _types(contents: Contents) -> list[tuple[str, str]]:
    return [(column.name, column.dtype.str) for column in contents.columns]


def _same(one: Block, other: Block, i: int) -> bool:
    if one.failed[i] or other.failed[i]:
        return False
    return all(
        a.shapes[i] == b.shapes[i]
        and np.array_equal(
            a.data[a.bounds[i] : a.bounds[i + 1]], b.data[b.bounds[i] : b.bounds[i + 1]]
        )
        for a, b in zip(one.pieces, other.pieces, strict=True)
    )
