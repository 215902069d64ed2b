"""Size mixes and HDF5 files that the benchmarks of the loader read.

Everything is made from fixed seeds. Used by loader.py's parts (`_padding.py`, `_reads.py`).
"""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

MATRIX_MIX = {512: 1200, 1024: 900, 1536: 480, 2048: 144, 3072: 88, 4096: 30}
"""Samples by size: six sizes, the largest 64 times as much to read as the smallest."""
ZIPF_SAMPLES = 400
ZIPF_SIZES = 250
_DISTINCT_CHUNKS = 8


def matrix_mix(*, sizes_by: int, counts_by: int) -> dict[int, int]:
    """Samples by size with both divided, so that a CPU can do them."""
    return {size // sizes_by: -(-count // counts_by) for size, count in MATRIX_MIX.items()}


def every_size(mix: dict[int, int]) -> Ints:
    """The sizes of all samples, small ones first."""
    return np.repeat(np.array(list(mix), dtype=np.int64), list(mix.values()))


def zipf_mix() -> dict[int, int]:
    """Of rank r there are samples in proportion to 1 / r, at least one: small ones, a long tail."""
    ranks = range(1, ZIPF_SIZES + 1)
    whole = sum(1 / rank for rank in ranks)
    return {16 + 2 * rank: max(1, round(ZIPF_SAMPLES / rank / whole)) for rank in ranks}


def write_matrices(path: Path, sizes: Ints) -> Path:
    """n × n entries of each sample, one sample after another, sizes in random order."""
    random = np.random.default_rng(2)
    sizes = random.permutation(sizes)
    offsets = np.concatenate([[0], np.cumsum(sizes**2)])
    with h5py.File(path, "w") as file:
        file["n"] = sizes
        file["matrix"] = random.standard_normal(offsets[-1], dtype=np.float32)
        file["matrix_offsets"] = offsets
        file["answer"] = random.standard_normal(len(sizes), dtype=np.float32)
    return path


def write_rows(path: Path, num_samples: int, size: int) -> Path:
    """One plain row per sample."""
    random = np.random.default_rng(3)
    with h5py.File(path, "w") as file:
        file["n"] = np.full(num_samples, size)
        file["matrix"] = random.standard_normal((num_samples, size, size), dtype=np.float32)
        file["answer"] = random.standard_normal(num_samples, dtype=np.float32)
    return path


def write_packed(path: Path, num_chunks: int, *, samples_per_chunk: int, width: int) -> Path:
    """Small samples in large gzip chunks. A few chunks are repeated: packing takes long."""
    random = np.random.default_rng(4)
    packed = [
        zlib.compress(random.integers(0, 100, samples_per_chunk * width).astype("<f4").tobytes(), 1)
        for _ in range(_DISTINCT_CHUNKS)
    ]
    num_samples = num_chunks * samples_per_chunk
    with h5py.File(path, "w") as file:
        file["n"] = np.full(num_samples, width)
        data: Any = file.create_dataset(
            "signal",
            (num_samples, width),
            dtype="<f4",
            chunks=(samples_per_chunk, width),
            compression="gzip",
        )
        for chunk in range(num_chunks):
            where = (chunk * samples_per_chunk, 0)
            data.id.write_direct_chunk(where, packed[chunk % _DISTINCT_CHUNKS])
    return path


def write_groups(path: Path, num_samples: int, size: int) -> Path:
    """A group per sample."""
    random = np.random.default_rng(5)
    with h5py.File(path, "w") as file:
        file["n"] = np.full(num_samples, size)
        for index in range(num_samples):
            group = file.create_group(f"samples/{index}")
            group["matrix"] = random.standard_normal((size, size), dtype=np.float32)
            group["answer"] = np.float32(random.standard_normal())
    return path
