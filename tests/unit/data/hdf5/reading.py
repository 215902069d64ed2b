"""Small files in every layout and storage, and how two arrays are compared."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from tasuki.data.hdf5.dataset import Hdf5Dataset
from tasuki.errors import DataError

LENGTHS = [3, 0, 5, 1, 1, 4, 2, 0]
NUM = len(LENGTHS)
DTYPES = ("?", "i1", "u1", "<i2", ">i2", "<u4", ">i8", "u8", "<f2", ">f2", "<f4", ">f8", "c8")
STORAGES: dict[str, dict[str, Any]] = {
    "contiguous": {},
    "chunked": {"chunks": True},
    "packed": {"chunks": True, "compression": "gzip", "shuffle": True, "fletcher32": True},
}
Write = Callable[[h5py.File], object]


def values(*shape: int, dtype: str = "f4", seed: int = 1) -> np.ndarray:
    found = np.random.default_rng(seed).integers(0, 100, shape)
    return (found > 50) if dtype == "?" else found.astype(dtype)


def write(path: Path, fill: Write, *, num: int = NUM, **options: Any) -> Path:
    with h5py.File(path, "w", **options) as file:
        file["n"] = np.arange(1, num + 1)
        fill(file)
    return path


def write_flat(file: h5py.File, name: str, data: np.ndarray, lengths: list[int], **o: Any) -> None:
    file.create_dataset(name, data=data, **o)
    file[f"{name}_offsets"] = np.cumsum([0, *lengths])


def is_same(one: np.ndarray, other: np.ndarray) -> bool:
    one, other = np.asarray(one), np.asarray(other)
    return one.dtype == other.dtype and one.shape == other.shape and bool((one == other).all())


def refuse(read: Callable[[], object], words: str) -> DataError:
    with pytest.raises(DataError, match=words) as caught:
        read()
    assert caught.value.hint
    return caught.value


def make_packed(tmp_path: Path) -> tuple[Hdf5Dataset, np.ndarray]:
    rows = np.random.default_rng(1).random((200, 30))
    path = write(
        tmp_path / "x.h5",
        lambda f: f.create_dataset("x", data=rows, chunks=(8, 30), compression="gzip"),
        num=200,
    )
    return Hdf5Dataset(path), rows
