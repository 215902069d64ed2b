"""`seek`: how long it takes to find the samples of a step deep in an epoch over 10⁸ samples.

The index of the buckets is a file mapped into memory, as that of a mixed data set. Every round is a
fresh process (`python _seek.py FILE`), which makes an `Order` and requests step 10⁶. Its first
seek pays for whatever a process does for the first time. Then come fresh orders at random steps, as
in a process that has worked for a while. Memory is that of one seek, as Python counts it. Without a
file the samples are one bucket without an index. A part of loader.py.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
import tracemalloc
from functools import partial
from pathlib import Path
from random import Random

import numpy as np

from _measure import Figure, run_interleaved, sized, spread
from tasuki.data.buckets import Bucket, BucketPlan
from tasuki.data.order import Order

SAMPLES = sized(100_000_000, smoke=10_000_000)
NUM_SMALL = 1_000
"""Samples of a second bucket, which make the index necessary."""
STEP = 1_000_000
BATCH = 8
ROUNDS = sized(5, smoke=1)
NUM_SEEKS = 30
_BLOCK = 1 << 20


def measure(folder: Path) -> list[Figure]:
    index = _write_index(folder / "index")
    cases = {"mapped index": partial(_run_child, str(index)), "no index": partial(_run_child)}
    results = run_interleaved(cases, rounds=ROUNDS)
    figures: list[Figure] = []
    for title, children in results.items():
        step = f"step {STEP:,} of {SAMPLES:,} samples, {title}"
        for what, key, unit, scale in (
            (f"{step}: first seek of a process", "first_s", "ms", 1e3),
            ("… later seeks", "later_s", "ms", 1e3),
            ("… memory of a seek", "peak_bytes", "kB", 1e-3),
        ):
            value = spread([child[key] for child in children], scale=scale)
            figures.append(Figure(what, "", value, unit=unit))
    return figures


def _write_index(path: Path) -> Path:
    """Samples of both buckets alternate in the data set until the small ones are used up."""
    members = np.memmap(path, dtype=np.int64, mode="w+", shape=(SAMPLES + NUM_SMALL,))
    members[:NUM_SMALL] = np.arange(0, 2 * NUM_SMALL, 2)
    for start in range(0, SAMPLES, _BLOCK):
        number = np.arange(start, min(start + _BLOCK, SAMPLES))
        block = slice(NUM_SMALL + start, NUM_SMALL + start + len(number))
        members[block] = number + np.minimum(number + 1, NUM_SMALL)
    return path


def _run_child(*index: str) -> dict[str, float]:
    command = [sys.executable, __file__, *index]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    result: dict[str, float] = json.loads(ran.stdout)
    return result


# -- the child --------------------------------------------------------------------------------


def main(index: str | None) -> None:
    if index is None:
        plan = BucketPlan(buckets=(Bucket(64, SAMPLES),), members=None)
    else:
        members = np.memmap(index, dtype=np.int64, mode="r")
        plan = BucketPlan(buckets=(Bucket(32, NUM_SMALL), Bucket(64, SAMPLES)), members=members)
    random = Random()
    first_s = _seek(plan, STEP)
    last = -(-SAMPLES // BATCH)
    later = [_seek(plan, random.randrange(STEP, last)) for _ in range(NUM_SEEKS)]
    tracemalloc.start()
    _seek(plan, STEP)
    _, peak = tracemalloc.get_traced_memory()
    later_s = statistics.median(later)
    print(json.dumps({"first_s": first_s, "later_s": later_s, "peak_bytes": peak}))


def _seek(plan: BucketPlan, step: int) -> float:
    started = time.perf_counter()
    samples = Order(plan, seed=1, stage="bench", effective_batch=BATCH).step(0, step)
    taken = time.perf_counter() - started
    assert len(samples.indices) > 0
    return taken


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None)
