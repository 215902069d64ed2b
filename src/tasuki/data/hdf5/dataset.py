"""Samples of HDF5 files as a map-style data set, for recipes.

    def build_dataset(self, source, split):
        return Hdf5Dataset(source, split, transform=to_graph)

A sample is a dict: `n`, its size, and an array per data set of the file. `transform` makes of it
what the model wants; it runs under the sample's own random numbers. Nothing but the samples asked
for is read, and a batch's samples are read together, along the file's chunks.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from tasuki.data.hdf5.files import find_files
from tasuki.data.hdf5.layout import SIZES, refuse_different
from tasuki.data.hdf5.reader import BLOCK, KEPT, Arrays, Hdf5File, Ints
from tasuki.errors import DataError

SCORE = "score"
Transform = Callable[[dict[str, Any]], Any]
_READS = ("__getitem__", "read_raw", "finish", "read_stacked")


class Hdf5Dataset:
    """The samples of one or several files, one after another."""

    def __init__(
        self,
        source: str | Path | Sequence[str | Path],
        split: str | None = None,
        *,
        transform: Transform | None = None,
    ) -> None:
        """`source` is a file, a list or pattern of files, or a folder with a file per split."""
        self.files = [Hdf5File(path) for path in find_files(source, split)]
        refuse_different([(file.path, file.layout) for file in self.files])
        self._ends = list(accumulate(len(file) for file in self.files))
        self.transform = transform

    @property
    def draws_random_numbers(self) -> bool | None:
        """False spares the seeding of each sample (promise 2): what is read is what is stored. None
        where other code may draw."""
        own = type(self)
        is_ours = all(getattr(own, name) is getattr(Hdf5Dataset, name) for name in _READS)
        return False if self.transform is None and is_ours else None

    @property
    def sizes(self) -> Ints | Sizes:
        """The size of every sample, as `n` says: an array, or of very many a sequence that is read
        when it is asked."""
        sizes = Sizes(self.files, self._ends)
        return sizes if len(self) > KEPT else np.asarray(sizes)

    def counts(self, name: str) -> Ints:
        """A number per sample: rows of a flat data set, or what one with S entries holds."""
        return np.concatenate([file.counts(name) for file in self.files])

    def scores(self) -> NDArray[np.float64]:
        """The data set `score`, for `order: score`."""
        for file in self.files:
            column = file.layout.column(SCORE)
            if column is None or column.kind != "rows" or column.shape != ():
                raise DataError(
                    f"`{file.path}` has no data set `{SCORE}` with one number per sample",
                    hint="`order: score` takes small scores first; or give the recipe "
                    "`sample_scores(self, dataset)`",
                )
        return np.concatenate([file.numbers(SCORE) for file in self.files]).astype(np.float64)

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, index: int) -> Any:
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        [sample] = self.read_raw([index % len(self)])
        return self.finish(sample)

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        return [self.finish(sample) for sample in self.read_raw(indices)]

    def read_raw(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """These samples as stored, read together."""
        wanted = np.asarray(indices, dtype=np.int64)
        samples: list[dict[str, Any]] = [{}] * len(wanted)
        for file, places, local in self._by_file(wanted):
            sizes = file.sizes_at(local).tolist()
            read = file.read(local)
            for place, size, sample in zip(places.tolist(), sizes, read, strict=True):
                samples[place] = {SIZES: size, **sample}
        return samples

    def finish(self, sample: dict[str, Any]) -> Any:
        """What becomes of a stored sample: the part that may draw random numbers."""
        return sample if self.transform is None else self.transform(sample)

    def read_stacked(self, indices: Sequence[int]) -> Arrays | None:
        """What the default collate would make of these samples; None where it could not."""
        wanted = np.asarray(indices, dtype=np.int64)
        groups = list(self._by_file(wanted))
        if self.draws_random_numbers is not False or len(groups) != 1:
            return None
        [(file, _, local)] = groups
        stacked = file.read_stacked(local)
        return None if stacked is None else {SIZES: file.sizes_at(local), **stacked}

    def _by_file(self, wanted: Ints) -> list[tuple[Hdf5File, NDArray[np.intp], Ints]]:
        """For each file that is asked: places in `wanted`, and the file's own indices."""
        if len(self.files) == 1:
            return [(self.files[0], np.arange(len(wanted)), wanted)]
        which = np.searchsorted(self._ends, wanted, side="right")
        groups = []
        for number in np.unique(which).tolist():
            places = np.flatnonzero(which == number)
            first = self._ends[number - 1] if number else 0
            groups.append((self.files[number], places, wanted[places] - first))
        return groups


class Sizes:
    """Sizes of samples as a sequence that is read piece by piece: 10⁸ of them take no memory."""

    def __init__(self, files: Sequence[Hdf5File], ends: Sequence[int]) -> None:
        self._files, self._ends = files, ends

    def __len__(self) -> int:
        return self._ends[-1]

    def __iter__(self) -> Iterator[int]:
        for begin in range(0, len(self), BLOCK):
            yield from self._between(begin, min(begin + BLOCK, len(self))).tolist()

    @overload
    def __getitem__(self, where: int) -> int: ...
    @overload
    def __getitem__(self, where: slice) -> Ints: ...
    def __getitem__(self, where: int | slice) -> int | Ints:
        if not isinstance(where, slice):
            where = operator.index(where)
            if not -len(self) <= where < len(self):
                raise IndexError(where)
            return int(self._between(where % len(self), where % len(self) + 1)[0])
        begin, end, step = where.indices(len(self))
        assert step == 1, "sizes are read one after another"
        return self._between(begin, end)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return self._between(0, len(self)).astype(dtype or np.int64, copy=False)

    def _between(self, begin: int, end: int) -> Ints:
        pieces = [np.empty(0, dtype=np.int64)]
        first = 0
        for file, last in zip(self._files, self._ends, strict=True):
            low, high = max(begin, first), min(end, last)
            if low < high:
                pieces.append(_checked(file, low - first, high - first))
            first = last
        return np.concatenate(pieces)


def _checked(file: Hdf5File, begin: int, end: int) -> Ints:
    sizes = file.read_rows(SIZES, begin, end).astype(np.int64, copy=False)
    if sizes.min() < 1:
        at = int(np.flatnonzero(sizes < 1)[0])
        raise DataError(
            f"sample {begin + at} of `{file.path}` has size {sizes[at]}",
            hint=f"`tasuki data check {file.path} --fix` leaves such samples out",
        )
    return sizes
