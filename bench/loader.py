"""What tasuki's data layer gains and costs: buckets, HDF5 reads, seeks, the wait for data.

Run as `python bench/loader.py`, or with the names of some parts: `… loader.py hdf5 seek`. About two
minutes on two cores. Each part is in a file that describes what it compares:

    buckets   _padding.py   bucketed steps against padding to the largest sample
    hdf5      _reads.py     random batches of tasuki's reader against loops over h5py
    seek      _seek.py      a step deep in an epoch over 10⁸ samples, in a fresh process
    wait      _waits.py     how long steps wait for their data under `workers: auto`, in a real run

Temporary files (0.9 GB at most) are in TMPDIR and are removed.
"""

from __future__ import annotations

import sys

import _padding
import _reads
import _seek
import _waits
from _measure import run_bench

PARTS = {
    "buckets": _padding.measure,
    "hdf5": _reads.measure,
    "seek": _seek.measure,
    "wait": _waits.measure,
}

if __name__ == "__main__":
    sys.exit(run_bench("loader", PARTS, packages=("torch", "numpy", "h5py")))
