"""Is the memory of a step what a memory probe predicts, and what follows from it?

Run as `python bench/memory.py`, or with the names of some parts: `… memory.py peaks largest`. Half
an hour in all, most of it the runs under caps. Each part is in a file that describes what it
compares:

    peaks     _peaks.py     the peak of a step's tensors, against real steps and torch's profiler
    largest   _largest.py   the largest batch under a limit, against real steps under that limit
    speed     _speed.py     what an estimate costs
    wall      _wall.py      wall times predicted from past runs
    caps      _caps.py      training under random limits
"""

from __future__ import annotations

import sys

import _caps
import _largest
import _peaks
import _speed
import _wall
from _measure import run_bench

PARTS = {
    "peaks": _peaks.measure,
    "largest": _largest.measure,
    "speed": _speed.measure,
    "wall": _wall.measure,
    "caps": _caps.measure,
}

if __name__ == "__main__":
    sys.exit(run_bench("memory", PARTS, packages=("torch",)))
