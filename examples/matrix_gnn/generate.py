"""Make matrices with a known largest eigenvalue: HDF5 files with train, val and test splits.

    python generate.py                             # the small set: six sizes, 10 MB, two seconds
    python generate.py --out data-gpu --together small=512,1024 \\
        --sizes 512:1200 1024:900 1536:480 2048:144 3072:88 4096:30

A matrix is a signal with noise over it, s·d·dᵀ + noise; its answer is its largest eigenvalue / n.
The smaller a matrix, the more of its answer is noise: sizes differ in more than the size. A file
holds `n` (S), `matrix` (all entries, one matrix after another), `matrix_offsets` (S + 1) and
`answer` (S). One matrix is in memory at a time. A sample hangs on (seed, split, size, number) only.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

if __name__ == "__main__":
    # One thread: an answer's last bits must not hang on the number of cores. numpy reads this once.
    os.environ.update(OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1", OMP_NUM_THREADS="1")
import numpy as np
from numpy.typing import NDArray

try:
    import h5py
except ImportError:
    sys.exit('generate.py needs h5py: pip install "tasuki[hdf5]"')

SIZES = ("16:300", "32:225", "48:120", "64:36", "96:22", "128:8")
TOGETHER = ("small=16,32",)
SPLITS = ("train", "val", "test")
STRENGTH = (0.5, 3.0)
DIRECTION = (0.2, 1.2)
NOISE = 2.0
EXACT_UP_TO = 256
"""Larger matrices have a clear gap below their largest eigenvalue: power iteration finds it."""
TELL_EVERY_S = 2.0


def main() -> None:
    options = read_options()
    counts = dict(options.sizes)
    for name, sizes in name_files(list(counts), options.together).items():
        for split in SPLITS:
            extra = {"val": options.val, "test": options.test}
            wanted = {size: extra.get(split, counts[size]) for size in sizes}
            path = Path(options.out, name, f"{split}.h5")
            made = {"seed": options.seed, "split": split, "samples": wanted}
            if is_there(path, made, force=options.force):
                print(f"{path}: there already")
            else:
                write_file(path, wanted, split, options.seed, json.dumps(made))


def make_sample(seed: int, split: str, size: int, number: int) -> tuple[NDArray[np.float32], float]:
    """A symmetric matrix and its largest eigenvalue / size."""
    random = np.random.default_rng([seed, SPLITS.index(split), size, number])
    strength = np.float32(random.uniform(*STRENGTH))
    direction = random.uniform(*DIRECTION, size).astype(np.float32)
    noise = random.standard_normal((size, size), dtype=np.float32)
    matrix = strength * np.outer(direction, direction) + NOISE / 2 * (noise + noise.T)
    return matrix, largest_eigenvalue(matrix) / size


def largest_eigenvalue(matrix: NDArray[np.float32]) -> float:
    exact = matrix.astype(np.float64)
    vector = np.ones(len(exact)) / np.sqrt(len(exact))
    for _ in range(500 if len(exact) > EXACT_UP_TO else 0):
        image = exact @ vector
        value = float(vector @ image)
        # The error of the value is of the order of this distance squared.
        if np.linalg.norm(image - value * vector) < 1e-7 * value:
            return value
        vector = image / np.linalg.norm(image)
    return float(np.linalg.eigvalsh(exact)[-1])


def write_file(path: Path, wanted: dict[int, int], split: str, seed: int, made: str) -> None:
    """Whole or not at all: written beside its place and moved there at the end."""
    sizes = np.repeat(list(wanted), list(wanted.values()))
    offsets = np.concatenate([[0], np.cumsum(sizes**2)])
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with h5py.File(draft, "w") as file:
            file.attrs["made"] = made
            file["n"] = sizes
            file["matrix_offsets"] = offsets
            matrices = file.create_dataset("matrix", (offsets[-1],), dtype=np.float32)
            answers = file.create_dataset("answer", (len(sizes),), dtype=np.float32)
            numbers = [number for count in wanted.values() for number in range(count)]
            for at in told(path, offsets):
                matrix, answers[at] = make_sample(seed, split, int(sizes[at]), numbers[at])
                matrices[offsets[at] : offsets[at + 1]] = matrix.ravel()
        with draft.open("rb") as written:
            os.fsync(written.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def told(path: Path, offsets: NDArray[np.int64]) -> Iterator[int]:
    """Every sample's place; says how far it is every few seconds, and what was made."""
    began = last = time.monotonic()
    num_samples, entries = len(offsets) - 1, int(offsets[-1])
    for at in range(num_samples):
        yield at
        now = time.monotonic()
        if now - last > TELL_EVERY_S:
            last, share = now, offsets[at + 1] / entries
            left = (now - began) * (1 - share) / share
            print(f"{path}: {at + 1:,} of {num_samples:,} samples, {left:,.0f} s left", flush=True)
    print(f"{path}: {num_samples:,} samples, {4 * entries / 1e6:,.1f} MB", flush=True)


def is_there(path: Path, made: dict[str, object], *, force: bool) -> bool:
    """A file that was made with the same settings is kept: after an interrupt only the rest is."""
    if force or not path.exists():
        return False
    with h5py.File(path) as file:
        found = file.attrs.get("made")
    if found == json.dumps(made):
        return True
    sys.exit(f"{path} was made with other sizes, counts or seed: `--force` replaces it")


def name_files(sizes: list[int], together: list[tuple[str, list[int]]]) -> dict[str, list[int]]:
    """Which sizes go into which folder, smallest first."""
    shared = {size: name for name, group in together for size in group}
    unknown = sorted(shared.keys() - set(sizes))
    if unknown:
        sys.exit(f"--together names size {unknown[0]}, but --sizes does not")
    files: dict[str, list[int]] = {}
    for size in sorted(sizes):
        files.setdefault(shared.get(size, f"size_{size}"), []).append(size)
    return files


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Make matrices with a known largest eigenvalue.")
    parser.add_argument("--out", default="data", metavar="DIR", help="a folder per file goes here")
    parser.add_argument(
        "--sizes", nargs="+", type=size_and_count, default=[size_and_count(t) for t in SIZES],
        metavar="SIZE:COUNT", help=f"training samples of each size ({' '.join(SIZES)})",
    )  # fmt: skip
    parser.add_argument(
        "--together", nargs="*", type=name_and_sizes, metavar="NAME=SIZE,SIZE",
        help=f"sizes that share a file ({' '.join(TOGETHER)} unless --sizes is given)",
    )  # fmt: skip
    parser.add_argument("--val", type=positive, default=12, help="samples of each size (12)")
    parser.add_argument("--test", type=positive, default=24, help="samples of each size (24)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--force", action="store_true", help="replace files made otherwise")
    options = parser.parse_args()
    if options.together is None:
        is_default = options.sizes is parser.get_default("sizes")
        options.together = [name_and_sizes(text) for text in TOGETHER] if is_default else []
    return options


def positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a number of at least 1")
    return int(text)


def size_and_count(text: str) -> tuple[int, int]:
    size, _, count = text.partition(":")
    return positive(size), positive(count)


def name_and_sizes(text: str) -> tuple[str, list[int]]:
    name, _, sizes = text.partition("=")
    if not name.replace("_", "").isalnum():
        raise argparse.ArgumentTypeError(f"{text} names no file: write small=16,32")
    return name, [positive(size) for size in sizes.split(",")]


if __name__ == "__main__":
    main()
