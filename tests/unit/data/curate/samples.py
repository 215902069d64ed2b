"""Files of samples in every layout, read back by h5py alone, and the verbs on them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
from tests.unit.data.heard import Heard

from tasuki.data.curate.work import work

Sample = dict[str, np.ndarray]

SIZES = (4, 6, 9)
SMALL_BLOCKS = 2048
"""Bytes: a file of a hundred samples has many blocks."""


def make_samples(num: int, *, seed: int = 0) -> list[Sample]:
    """All different, of three sizes; the second data set has as many rows as the size says."""
    random = np.random.default_rng(seed)
    made = []
    for i in range(num):
        size = SIZES[i % len(SIZES)]
        made.append(
            {
                "n": np.int64(size),
                "label": np.int16(random.integers(0, 5)),
                "nodes": random.normal(size=(size, 3)).astype(np.float32),
                "picture": random.normal(size=(4, 2)),
            }
        )
    return made


def write_rows(path: Path, samples: list[Sample], **options: Any) -> Path:
    """A row per sample; what differs in length is left out."""
    with h5py.File(path, "w") as file:
        file["n"] = [sample["n"] for sample in samples]
        for name in ("label", "picture"):
            file.create_dataset(name, data=np.stack([s[name] for s in samples]), **options)
    return path


def write_flat(path: Path, samples: list[Sample], **options: Any) -> Path:
    with h5py.File(path, "w") as file:
        file["n"] = [sample["n"] for sample in samples]
        file.create_dataset("label", data=np.stack([s["label"] for s in samples]), **options)
        nodes = [sample["nodes"] for sample in samples]
        file.create_dataset("nodes", data=np.concatenate(nodes), **options)
        file["nodes_offsets"] = np.cumsum([0, *(len(one) for one in nodes)])
    return path


def write_groups(path: Path, samples: list[Sample], **options: Any) -> Path:
    with h5py.File(path, "w") as file:
        file["n"] = [sample["n"] for sample in samples]
        for i, sample in enumerate(samples):
            for name in ("label", "nodes"):
                more = options if sample[name].ndim else {}
                file.create_dataset(f"samples/{i}/{name}", data=sample[name], **more)
    return path


WRITERS = {"rows": write_rows, "flat": write_flat, "groups": write_groups}


def read_samples(path: Path) -> list[Sample]:
    """What a file holds, without any of our own reading."""
    with h5py.File(path, "r") as file:
        sizes = file["n"][()]
        flat = [name for name in file if f"{name}_offsets" in file]
        plain = [name for name in file if name not in ("n", "samples", *flat) and file[name].shape]
        plain = [name for name in plain if name.removesuffix("_offsets") not in flat]
        samples: list[Sample] = []
        for i, size in enumerate(sizes):
            sample = {"n": size} | {name: file[name][i] for name in plain}
            for name in flat:
                begin, end = file[f"{name}_offsets"][i : i + 2]
                sample[name] = file[name][begin:end]
            if "samples" in file:
                sample |= {name: data[()] for name, data in file[f"samples/{i}"].items()}
            samples.append(sample)
    return samples


def contents(samples: list[Sample]) -> list[str]:
    """Samples as text that can be compared, counted and put into sets."""
    return [
        str([(name, v.dtype.str, v.shape, v.tobytes()) for name, v in sorted(sample.items())])
        for sample in ({name: np.asarray(value) for name, value in one.items()} for one in samples)
    ]


def order(verb: str, *files: Path | str, **more: Any) -> dict[str, Any]:
    """What the command line would ask for."""
    values: dict[str, Any] = {
        "merge": {"unique": False, "output": None},
        "split": {"folder": None, "seed": 0, "parts": "0.8,0.1,0.1"},
        "check": {"fix": False, "output": None, "allow": []},
    }[verb]
    more = {key: str(value) if isinstance(value, Path) else value for key, value in more.items()}
    words = {"verb": verb, "files": [str(file) for file in files], "block_bytes": SMALL_BLOCKS}
    return words | {"force": False, "dry_run": False} | values | more


def do(verb: str, *files: Path | str, heard: Heard | None = None, **more: Any) -> dict[str, Any]:
    """The values of `--json`."""
    return work(order(verb, *files, **more), heard or Heard())


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())
