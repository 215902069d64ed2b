"""What tasuki's data layer gains and costs: buckets, HDF5 reads, seeks, the wait for data.

Run as `python bench/loader.py`, or with the names of some parts: `… loader.py hdf5 seek`. About two
minutes on two cores. Each part is in a file of its own and says there what it compares:

    buckets   _padding.py   bucketed steps against padding to the largest sample
    hdf5      _reads.py     random batches of tasuki's reader against loops over h5py
    seek      _seek.py      a step deep in an epoch over 10⁸ samples, in a fresh process
    wait      _waits.py     how long steps wait for their data under `workers: auto`, in real runs

Temporary files (0.9 GB at the most) lie in TMPDIR and are removed.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from types import ModuleType

import _padding
import _reads
import _seek
import _waits
from _measure import machine_facts, print_facts, write_results

PARTS: dict[str, ModuleType] = {
    "buckets": _padding,
    "hdf5": _reads,
    "seek": _seek,
    "wait": _waits,
}


def main(wanted: list[str]) -> int:
    if unknown := set(wanted) - set(PARTS):
        sys.exit(f"error: there is no part {', '.join(unknown)}; there are {', '.join(PARTS)}")
    facts = machine_facts("tasuki", "torch", "numpy", "h5py")
    print_facts(facts)
    results = {}
    for name in wanted or PARTS:
        with tempfile.TemporaryDirectory(prefix="tasuki-bench-") as folder:
            results[name] = PARTS[name].measure(Path(folder))
        PARTS[name].show(results[name])
        sys.stdout.flush()
    if not wanted:
        write_results("loader", {"machine": facts, **results})
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
