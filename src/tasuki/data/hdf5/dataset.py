"""Samples of HDF5 files as a map-style data set, for recipes.

    def build_dataset(self, source, split):
        return Hdf5Dataset(source, split, transform=to_graph)

A sample is a dict: `n`, its size, and an array per data set of the file. `transform` makes of it
what the model wants; it runs under the sample's own random numbers. Nothing but the samples asked
for is read, and a batch's samples are read together, along the file's chunks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasuki.data.hdf5.files import find_files
from tasuki.data.hdf5.layout import SIZES, refuse_different
from tasuki.data.hdf5.reader import Arrays, Hdf5File, Ints
from tasuki.errors import DataError

Transform = Callable[[dict[str, Any]], Any]


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
        self._sizes: Ints | None = None
        self.transform = transform

    @property
    def draws_random_numbers(self) -> bool:
        """False spares the seeding of each sample (promise 2): what is read is what is stored."""
        return self.transform is not None

    @property
    def sizes(self) -> Ints:
        """The size of every sample, as `n` says."""
        if self._sizes is None:
            self._sizes = np.concatenate([_sizes_of(file) for file in self.files])
        return self._sizes

    def counts(self, name: str) -> Ints:
        """A number per sample: rows of a flat data set, or what one with S entries holds."""
        return np.concatenate([file.counts(name) for file in self.files])

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
            for place, sample in zip(places.tolist(), file.read(local), strict=True):
                samples[place] = {SIZES: int(self.sizes[wanted[place]]), **sample}
        return samples

    def finish(self, sample: dict[str, Any]) -> Any:
        """What becomes of a stored sample: the part that may draw random numbers."""
        return sample if self.transform is None else self.transform(sample)

    def read_stacked(self, indices: Sequence[int]) -> Arrays | None:
        """What the default collate would make of these samples; None where it could not."""
        wanted = np.asarray(indices, dtype=np.int64)
        groups = list(self._by_file(wanted))
        if self.transform is not None or len(groups) != 1:
            return None
        [(file, _, local)] = groups
        stacked = file.read_stacked(local)
        return None if stacked is None else {SIZES: self.sizes[wanted], **stacked}

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


def _sizes_of(file: Hdf5File) -> Ints:
    sizes = file.sizes()
    if sizes.min() < 1:
        at = int(np.flatnonzero(sizes < 1)[0])
        raise DataError(
            f"sample {at} of `{file.path}` has size {sizes[at]}",
            hint=f"`tasuki data check {file.path} --fix` leaves such samples out",
        )
    return sizes
