"""`hdf5`: random batches of HDF5 files by tasuki's reader against loops over h5py.

Three ways to make the same batch of tensors from one kind of file, the page cache warm for all:

    file[name][i]        what is written first: the file open once, sample by sample
    data sets kept open  the same with the data sets looked up once, which keeps HDF5's chunk cache
    tasuki               Fetcher over Hdf5Dataset, as a run reads

Each way has a copy of the file: inside a process HDF5 shares open data sets and their chunk caches
between all who opened the same file. A part of loader.py.
"""

from __future__ import annotations

import shutil
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import h5py
import numpy as np
import torch
from torch import Tensor
from torch.utils.data import default_collate

from _measure import Figure, ratios, run_interleaved, sized
from _padding import MATRICES, write_matrices
from tasuki.data.fetch import Fetcher, Request
from tasuki.data.hdf5.dataset import Hdf5Dataset

BATCH = 32
ROUNDS = sized(9, smoke=1)
SIZE = 64
NUM_ROWS, NUM_GROUPS = sized((3000, 2000), smoke=(100, 100))
CHUNK_SAMPLES, WIDTH = 512, 256
NUM_CHUNKS = sized((32, 320), smoke=(1, 2))
"""Of files whose chunks fit into HDF5's cache (128 MB for each data set), or do not."""
_DISTINCT_CHUNKS = 8
Read = Callable[[Sequence[int]], dict[str, Tensor]]
Sample = Callable[[int], dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileKind:
    path: Path
    indices: Sequence[int]
    """What batches are drawn from."""
    naive: Callable[[h5py.File], Sample]
    kept_open: Callable[[h5py.File], Sample]
    num_batches: int
    """Batches in a turn."""


def measure(folder: Path) -> list[Figure]:
    torch.set_num_threads(1)
    figures: list[Figure] = []
    for what, kind in _file_kinds(folder).items():
        figures += _measure_kind(what, kind)
    return figures


def _measure_kind(what: str, kind: FileKind) -> list[Figure]:
    random = Random(1)
    with h5py.File(_copy(kind, "naive")) as naive, h5py.File(_copy(kind, "kept")) as kept_open:
        fetcher = Fetcher(Hdf5Dataset(_copy(kind, "tasuki")), None)
        ways: dict[str, Read] = {
            "naive": _loop(kind.naive(naive)),
            "kept open": _loop(kind.kept_open(kept_open)),
            "tasuki": lambda indices: fetcher(Request(list(indices), None)),
        }
        _check_equal(ways, random.sample(kind.indices, BATCH))
        # All ways read the same batches in a round: each gets them from its iterator.
        rounds = [
            [random.sample(kind.indices, BATCH) for _ in range(kind.num_batches)]
            for _ in range(ROUNDS + 1)
        ]
        cases = {name: partial(_time, read, iter(rounds)) for name, read in ways.items()}
        taken = run_interleaved(cases, rounds=ROUNDS)
    return [
        Figure(f"{what}: times as fast", "file[name][i]", ratios(taken["naive"], taken["tasuki"])),
        Figure("… the same", "data sets kept open", ratios(taken["kept open"], taken["tasuki"])),
    ]


def _time(read: Read, rounds: Any) -> float:
    batches = next(rounds)
    started = time.perf_counter()
    for indices in batches:
        read(indices)
    return time.perf_counter() - started


def _copy(kind: FileKind, way: str) -> Path:
    target = kind.path.with_name(f"{kind.path.stem}.{way}.h5")
    shutil.copyfile(kind.path, target)
    return target


def _loop(sample: Sample) -> Read:
    return lambda indices: default_collate([sample(i) for i in indices])


def _check_equal(ways: dict[str, Read], indices: list[int]) -> None:
    expected = ways["naive"](indices)
    for name, read in ways.items():
        batch = read(indices)
        assert batch.keys() == expected.keys(), (name, list(batch))
        for key, value in batch.items():
            assert value.dtype == expected[key].dtype, (name, key, value.dtype)
            assert torch.equal(value, expected[key]), (name, key)


# -- kinds of files ---------------------------------------------------------------------------


def _file_kinds(folder: Path) -> dict[str, FileKind]:
    rows = ("n", "matrix", "answer")
    flat = write_matrices(
        folder / "flat.h5", {size // 16: sized(n, smoke=40) for size, n in MATRICES.items()}
    )
    with h5py.File(flat) as file:
        bucket = np.flatnonzero(file["n"][()] == SIZE).tolist()
    kinds = {
        "plain rows": FileKind(
            path=write_rows(folder / "rows.h5", NUM_ROWS),
            indices=range(NUM_ROWS),
            naive=partial(_rows, names=rows),
            kept_open=partial(_rows_kept, names=rows),
            num_batches=8,
        ),
        "flat with offsets": FileKind(
            path=flat, indices=bucket, naive=_flat, kept_open=_flat_kept, num_batches=8
        ),
        "a group per sample": FileKind(
            path=write_groups(folder / "groups.h5", NUM_GROUPS),
            indices=range(NUM_GROUPS),
            naive=_groups,
            kept_open=_groups_kept,
            num_batches=4,
        ),
    }
    for num_chunks in NUM_CHUNKS:
        megabytes = num_chunks * CHUNK_SAMPLES * WIDTH * 4 >> 20
        kinds[f"gzip, {megabytes} MB in chunks of 512 KB"] = FileKind(
            path=write_packed(folder / f"gzip{num_chunks}.h5", num_chunks),
            indices=range(num_chunks * CHUNK_SAMPLES),
            naive=partial(_rows, names=("n", "signal")),
            kept_open=partial(_rows_kept, names=("n", "signal")),
            num_batches=1,
        )
    return kinds


def write_rows(path: Path, num_samples: int) -> Path:
    random = np.random.default_rng(3)
    with h5py.File(path, "w") as file:
        file["n"] = np.full(num_samples, SIZE)
        file["matrix"] = random.standard_normal((num_samples, SIZE, SIZE), dtype=np.float32)
        file["answer"] = random.standard_normal(num_samples, dtype=np.float32)
    return path


def write_packed(path: Path, num_chunks: int) -> Path:
    """Small samples in large gzip chunks. A few chunks are repeated: compression takes long."""
    random = np.random.default_rng(4)
    packed = [
        zlib.compress(random.integers(0, 100, CHUNK_SAMPLES * WIDTH).astype("<f4").tobytes(), 1)
        for _ in range(_DISTINCT_CHUNKS)
    ]
    num_samples = num_chunks * CHUNK_SAMPLES
    with h5py.File(path, "w") as file:
        file["n"] = np.full(num_samples, WIDTH)
        data: Any = file.create_dataset(
            "signal",
            (num_samples, WIDTH),
            dtype="<f4",
            chunks=(CHUNK_SAMPLES, WIDTH),
            compression="gzip",
        )
        for chunk in range(num_chunks):
            data.id.write_direct_chunk((chunk * CHUNK_SAMPLES, 0), packed[chunk % _DISTINCT_CHUNKS])
    return path


def write_groups(path: Path, num_samples: int) -> Path:
    random = np.random.default_rng(5)
    with h5py.File(path, "w") as file:
        file["n"] = np.full(num_samples, SIZE)
        for index in range(num_samples):
            group = file.create_group(f"samples/{index}")
            group["matrix"] = random.standard_normal((SIZE, SIZE), dtype=np.float32)
            group["answer"] = np.float32(random.standard_normal())
    return path


# -- loops over h5py --------------------------------------------------------------------------


def _rows(file: h5py.File, names: Sequence[str]) -> Sample:
    return lambda i: {name: file[name][i] for name in names}


def _rows_kept(file: h5py.File, names: Sequence[str]) -> Sample:
    sets = {name: file[name] for name in names}
    return lambda i: {name: data[i] for name, data in sets.items()}


def _flat(file: h5py.File) -> Sample:
    """The offsets are read once."""
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
    """The sizes and the names of the data sets are read once."""
    sizes, groups = file["n"][()], file["samples"]
    names = list(groups["0"])
    return lambda i: {"n": sizes[i], **{name: groups[f"{i}/{name}"][()] for name in names}}
