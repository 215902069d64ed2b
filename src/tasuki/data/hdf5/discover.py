"""Which data sets there are, and the sizes they have: the child process of `stages: auto`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tasuki.data.hdf5.dataset import Hdf5Dataset
from tasuki.data.hdf5.files import find_files, find_sources
from tasuki.data.hdf5.reader import BLOCK
from tasuki.subprocesses import Progress, ProgressCallback


def work(order: dict[str, Any], progress: ProgressCallback) -> list[dict[str, Any]]:
    """[{source, sizes}]: a file or a folder with one per split, as `data:` would name it."""
    sources = find_sources(order["sources"], order["split"])
    found = []
    for number, source in enumerate(sources, start=1):
        progress(Progress("looking at the data", number, len(sources)))
        sizes = {size for path in find_files(source, order["split"]) for size in _sizes(path)}
        found.append({"source": str(source), "sizes": sorted(sizes)})
    return found


def _sizes(path: Path) -> set[int]:
    sizes = Hdf5Dataset(path).sizes  # refuses sizes below 1, naming the sample
    blocks = (sizes[begin : begin + BLOCK] for begin in range(0, len(sizes), BLOCK))
    return {int(size) for block in blocks for size in np.unique(block)}
