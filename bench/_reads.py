"""Random batches of HDF5 files: tasuki's reader against loops over h5py.

Three ways to make the same batch of tensors from one kind of file, the page cache warm for all:

    f[k][i]         what one writes first: the file open once, sample by sample, default_collate
    sets kept open  the same with the data sets looked up once, which keeps HDF5's chunk cache alive
    tasuki          Fetcher over Hdf5Dataset, as a run reads

Every way has its own copy of the file: inside a process HDF5 shares open data sets and their chunk
caches between all who opened the same file. Used by loader.py.
"""

from __future__ import annotations

import gc
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import h5py
import numpy as np
import torch
from torch import Tensor
from torch.utils.data import default_collate

from _measure import print_table, ratios, spread
from _samples import (
    every_size,
    matrix_mix,
    write_groups,
    write_matrices,
    write_packed,
    write_rows,
)
from tasuki.data.fetch import Fetcher, Request
from tasuki.data.hdf5.dataset import Hdf5Dataset

BATCH = 32
ROUNDS = 9
GOAL = 2.0
SIZE = 64
CHUNK_SAMPLES, WIDTH = 512, 256
CHUNK_BYTES = CHUNK_SAMPLES * WIDTH * 4
FEW_CHUNKS, MANY_CHUNKS = 32, 320
NAIVE, KEPT, OURS = "f[k][i]", "sets kept open", "tasuki"
Batch = dict[str, Tensor]
Read = Callable[[Sequence[int]], Batch]
Sample = Callable[[int], dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One kind of file."""

    path: Path
    indices: Sequence[int]
    """What batches are drawn from."""
    naive: Callable[[h5py.File], Sample]
    kept: Callable[[h5py.File], Sample]
    batches: int
    """Of a way's turn."""


# -- loops over h5py --------------------------------------------------------------------------


def _rows(*names: str) -> Callable[[h5py.File], Sample]:
    return lambda file: lambda i: {name: file[name][i] for name in names}


def _rows_kept(*names: str) -> Callable[[h5py.File], Sample]:
    def sample_of(file: h5py.File) -> Sample:
        sets = {name: file[name] for name in names}
        return lambda i: {name: data[i] for name, data in sets.items()}

    return sample_of


def _flat(file: h5py.File) -> Sample:
    """Knows its offsets: they are read once."""
    offsets = file["matrix_offsets"][()].tolist()
    return lambda i: {
        "n": file["n"][i],
        "matrix": file["matrix"][offsets[i] : offsets[i + 1]],
        "answer": file["answer"][i],
    }


def _flat_kept(file: h5py.File) -> Sample:
    offsets = file["matrix_offsets"][()].tolist()
    sizes, matrix, answers = file["n"], file["matrix"], file["answer"]
    return lambda i: {
        "n": sizes[i],
        "matrix": matrix[offsets[i] : offsets[i + 1]],
        "answer": answers[i],
    }


def _groups(file: h5py.File) -> Sample:
    def sample(i: int) -> dict[str, Any]:
        group = file[f"samples/{i}"]
        return {"n": file["n"][i], **{name: group[name][()] for name in group}}

    return sample


def _groups_kept(file: h5py.File) -> Sample:
    """Knows the sizes and the names of the data sets."""
    sizes, groups = file["n"][()], file["samples"]
    names = list(groups["0"])
    return lambda i: {"n": sizes[i], **{name: groups[f"{i}/{name}"][()] for name in names}}


def _cases(folder: Path) -> dict[str, Case]:
    sizes = every_size(matrix_mix(sizes_by=16, counts_by=1))
    flat = write_matrices(folder / "flat.h5", sizes)

    def gzip(num_chunks: int) -> Case:
        path = write_packed(
            folder / f"gzip{num_chunks}.h5",
            num_chunks,
            samples_per_chunk=CHUNK_SAMPLES,
            width=WIDTH,
        )
        return Case(
            path=path,
            indices=range(num_chunks * CHUNK_SAMPLES),
            naive=_rows("n", "signal"),
            kept=_rows_kept("n", "signal"),
            batches=1,
        )

    return {
        f"plain rows of {SIZE} × {SIZE}": Case(
            path=write_rows(folder / "rows.h5", 3000, SIZE),
            indices=range(3000),
            naive=_rows("n", "matrix", "answer"),
            kept=_rows_kept("n", "matrix", "answer"),
            batches=8,
        ),
        f"flat + offsets, the bucket of {SIZE} × {SIZE}": Case(
            path=flat,
            indices=_bucket(flat, SIZE),
            naive=_flat,
            kept=_flat_kept,
            batches=8,
        ),
        f"gzip, 1 KB in chunks of 512 KB, {_megabytes(FEW_CHUNKS)}": gzip(FEW_CHUNKS),
        f"gzip, 1 KB in chunks of 512 KB, {_megabytes(MANY_CHUNKS)}": gzip(MANY_CHUNKS),
        f"a group per sample of {SIZE} × {SIZE}": Case(
            path=write_groups(folder / "groups.h5", 2000, SIZE),
            indices=range(2000),
            naive=_groups,
            kept=_groups_kept,
            batches=4,
        ),
    }


def _bucket(path: Path, size: int) -> list[int]:
    with h5py.File(path) as file:
        return [int(index) for index in np.flatnonzero(file["n"][()] == size)]


def _megabytes(num_chunks: int) -> str:
    return f"{num_chunks * CHUNK_BYTES >> 20} MB"


# -- measuring --------------------------------------------------------------------------------


def measure(folder: Path) -> dict[str, Any]:
    torch.set_num_threads(1)
    return {name: _measure_case(case) for name, case in _cases(folder).items()}


def _measure_case(case: Case) -> dict[str, Any]:
    random = Random(1)
    with h5py.File(_copy(case, "naive")) as naive, h5py.File(_copy(case, "kept")) as kept:
        ways: dict[str, Read] = {
            NAIVE: _loop(case.naive(naive)),
            KEPT: _loop(case.kept(kept)),
            OURS: _ours(_copy(case, "ours")),
        }
        _check_equal(ways, _draw(case, random))
        times: dict[str, list[float]] = {name: [] for name in ways}
        for number in range(-1, ROUNDS):
            batches = [_draw(case, random) for _ in range(case.batches)]
            for name, taken in _round(ways, batches, number).items():
                if number >= 0:
                    times[name].append(taken)
    return {
        "ways": {
            name: {"batch_s": spread(taken), "times_as_fast": ratios(times[NAIVE], taken)}
            for name, taken in times.items()
        },
        "ratio": ratios(times[NAIVE], times[OURS]),
        "ratio_to_kept": ratios(times[KEPT], times[OURS]),
    }


def _copy(case: Case, way: str) -> Path:
    target = case.path.with_name(f"{case.path.stem}.{way}.h5")
    shutil.copyfile(case.path, target)
    return target


def _draw(case: Case, random: Random) -> list[int]:
    return random.sample(case.indices, BATCH)


def _loop(sample: Sample) -> Read:
    return lambda indices: default_collate([sample(i) for i in indices])


def _ours(path: Path) -> Read:
    fetcher = Fetcher(Hdf5Dataset(path), None)
    assert not fetcher.is_seeded
    return lambda indices: fetcher(Request(list(indices), None))


def _check_equal(ways: dict[str, Read], indices: list[int]) -> None:
    expected = ways[NAIVE](indices)
    for name, read in ways.items():
        found = read(indices)
        assert found.keys() == expected.keys(), (name, list(found))
        for key, value in found.items():
            assert value.dtype == expected[key].dtype, (name, key, value.dtype)
            assert torch.equal(value, expected[key]), (name, key)


def _round(ways: dict[str, Read], batches: list[list[int]], number: int) -> dict[str, float]:
    """Seconds per batch of each way, over the same batches."""
    gc.collect()
    names = list(ways)
    turn = number % len(names)
    taken = {}
    for name in names[turn:] + names[:turn]:
        read = ways[name]
        began = time.perf_counter()
        for indices in batches:
            read(indices)
        taken[name] = (time.perf_counter() - began) / len(batches)
    return taken


# -- showing ----------------------------------------------------------------------------------


def show(found: dict[str, Any]) -> None:
    print_table(
        f"Random batches of {BATCH} samples of HDF5 files, page cache warm; medians of {ROUNDS} "
        "interleaved rounds [quartiles]",
        [
            "file",
            *(f"{name}, ms" for name in (NAIVE, KEPT, OURS)),
            f"{NAIVE} / {OURS}",
            f"{KEPT} / {OURS}",
            "goal",
        ],
        [
            [
                name,
                *(case["ways"][way]["batch_s"].show(2, scale=1000) for way in (NAIVE, KEPT, OURS)),
                case["ratio"].show(),
                case["ratio_to_kept"].show(),
                f"≥ {GOAL:.0f}: {'met' if case['ratio'].median >= GOAL else 'missed'}",
            ]
            for name, case in found.items()
        ],
    )
