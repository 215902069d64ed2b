"""Fetch samples and make a batch of them, in whatever process.

Each sample is fetched under random numbers seeded by (seed, stage, epoch, position), so that the
number of loader workers and how far they read ahead never matter (promise 2). Data that are certain
to draw nothing skip the seeding (10 µs a sample; drawn.py finds out about others), and plain arrays
are indexed as a whole: what comes out is the same, bit for bit.
"""

from __future__ import annotations

import contextlib
import inspect
import random
import traceback
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from operator import length_hint
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import TensorDataset, default_collate

from tasuki.data.generators import HOST
from tasuki.data.handing import align
from tasuki.data.hdf5.dataset import Hdf5Dataset
from tasuki.data.tokens.reader import TokenDataset
from tasuki.data.watched import WATCHED
from tasuki.errors import DataError, TasukiError, is_users

Collate = Callable[[list[Any]], Any]
Seed = Callable[[int], None]
RandomStates = tuple[Any, Any, Tensor]
"""Python's, numpy's and torch's, as a checkpoint can hold them."""

_DRAW_NOTHING = (TensorDataset, list, tuple, range, np.ndarray, np.memmap)
"""Data whose samples are certain not to draw random numbers."""

_STACKED = frozenset(map(np.dtype, ("?", *("i1", "i2", "i4", "i8"), *("u1", "u2", "u4"))))
_STACKED |= frozenset(map(np.dtype, ("f2", "f4", "f8")))
"""Numbers of which torch makes the same, rows or single. Not so of others: it refuses rows of
big-endian ones and takes single ones; of uint64 it is the other way round."""


class Request(NamedTuple):
    """The samples of a micro-batch."""

    indices: list[int]
    seeds: list[int] | None
    """Of each sample's random numbers; None: nothing is drawn."""


def seed_everything(seed: int) -> None:
    """Python's, numpy's and torch's global random numbers, the GPU's too."""
    seed_host(seed)
    if torch.cuda.is_available():
        torch.cuda.manual_seed(seed)


def seed_host(seed: int) -> None:
    """Those a sample is fetched with."""
    for generator in HOST:
        generator.seed(seed)


class Fetcher:
    """From a request to a batch. Goes to loader workers as it is."""

    def __init__(self, dataset: Any, collate: Collate | None) -> None:
        self.dataset = dataset
        self._own_collate = collate
        self.is_seeded = draws(dataset) or draws_in(collate)
        self.is_sure = _says(dataset) is True or _says(collate) is True
        """The data say themselves that they draw, or hang on a random state."""
        self._as_a_whole = None if self.is_seeded or collate is not None else _whole(dataset)

    def __call__(self, request: Request, *, seed: Seed | None = seed_host) -> Any:
        """The batch; before each sample `seed` is called with its seed, unless that is None."""
        if self._as_a_whole is not None:
            batch = self._as_a_whole(request.indices)
            if batch is not None:
                return align(batch)
        # As torch's loader workers compute: a mean over several threads has other last bits.
        threads = torch.get_num_threads()
        if threads != 1:
            torch.set_num_threads(1)
        try:
            samples = fetch(self.dataset, request, seed=seed)
            if self._own_collate is None:
                return _default(samples)  # made by torch: it lies as torch aligns it
            return align(self._own_collate(samples))
        finally:
            if threads != 1:
                torch.set_num_threads(threads)


def draws(dataset: Any) -> bool:
    """Might fetching a sample draw random numbers? Data may say that it does not."""
    return type(dataset) not in _DRAW_NOTHING and _says(dataset) is not False


def draws_in(collate: Collate | None) -> bool:
    return collate is not None and _says(collate) is not False


def _says(data: Any) -> bool | None:
    """None: nothing, or that it does not know."""
    # Statically: a wrapper that passes attributes on must not answer for what it wraps.
    if inspect.getattr_static(data, "draws_random_numbers", None) is None:
        return None
    word = data.draws_random_numbers
    return None if word is None else bool(word)


def fetch(dataset: Any, request: Request, *, seed: Seed | None = seed_host) -> list[Any]:
    """Samples, each under its own random numbers; read together where the data can do that."""
    indices = request.indices
    seeds = None if seed is None else request.seeds
    raw = dataset.read_raw(indices) if _reads_together(dataset) else None
    left = iter(indices)
    try:
        if raw is None and seeds is None:
            return [dataset[index] for index in left]
        samples: list[Any] = []
        for place, index in enumerate(left):
            if seed is not None and seeds is not None:
                seed(seeds[place])
            samples.append(dataset[index] if raw is None else dataset.finish(raw[place]))
        return samples
    except (TasukiError, MemoryError):  # no fault of the sample: fewer at once may have room
        raise
    except Exception as error:
        culprit = "`transform`" if raw is not None else "`__getitem__`"
        index = indices[len(indices) - 1 - length_hint(left)]
        raise DataError(
            f"sample {index} cannot be read: {type(error).__name__}: {error}{_place(error)}",
            hint=f"the {culprit} of the data set that `build_dataset` returned fails there",
        ) from error


def _place(error: BaseException) -> str:
    """The deepest line of code that is neither ours nor a library's."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if is_users(frame.filename)]
    return f" (at {Path(own[-1].filename).name}:{own[-1].lineno})" if own else ""


def _default(samples: list[Any]) -> Any:
    try:
        return default_collate(samples)
    except RuntimeError as error:
        if "equal size" not in str(error):
            raise
        raise DataError(
            f"samples of one step differ in shape and cannot be stacked: {error}",
            hint="give the recipe a `collate` that pads (`tasuki.pad_collate` does), or write "
            "`buckets: exact`",
        ) from error


def _whole(dataset: Any) -> Callable[[Sequence[int]], Any] | None:
    """A way to make a batch at once, the same as sample by sample; None where there is none."""
    if type(dataset) is TensorDataset:
        return partial(_rows_of_tensors, dataset.tensors)
    if type(dataset) in (np.ndarray, np.memmap) and dataset.dtype in _STACKED:
        return partial(_rows_of_array, dataset)
    if _reads_together(dataset):
        return partial(_stacked, dataset)
    if getattr(type(dataset), "__getitem__", None) is TokenDataset.__getitem__:
        batch: Callable[[Sequence[int]], Tensor] = dataset.batch
        return batch
    return None


def _reads_together(dataset: Any) -> bool:
    """Our own reader; but a subclass or a wrapper with its own `[]` must be asked through that."""
    own: Any = type(dataset)
    if getattr(own, "__getitem__", None) is not Hdf5Dataset.__getitem__:
        return False
    return own.read_raw is Hdf5Dataset.read_raw  # another one may draw, for each sample


def _rows_of_tensors(tensors: Sequence[Tensor], indices: Sequence[int]) -> list[Tensor]:
    return [tensor[torch.as_tensor(indices)] for tensor in tensors]


def _rows_of_array(array: NDArray[Any], indices: Sequence[int]) -> Tensor:
    return torch.from_numpy(np.asarray(array[np.asarray(indices)]))


def _stacked(dataset: Any, indices: Sequence[int]) -> dict[str, Tensor] | None:
    arrays = dataset.read_stacked(indices)
    if arrays is None:
        return None
    return {name: torch.from_numpy(np.asarray(array)) for name, array in arrays.items()}


@contextlib.contextmanager
def kept_random_states() -> Iterator[None]:
    """Whatever is drawn inside, the training's random numbers go on as if nothing was."""
    kept = WATCHED.keep()
    try:
        yield
    finally:
        WATCHED.put(kept)


def host_random_states() -> RandomStates:
    return random.getstate(), np.random.get_state(), torch.get_rng_state()


def set_host_random_states(states: RandomStates) -> None:
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.set_rng_state(states[2])
