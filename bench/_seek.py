"""How long it takes to find the samples of a step deep in an epoch over 10⁸ samples.

The index of the buckets lies in a file that is mapped into memory, as that of a mixed data set
does. Every round is a fresh process (`python bench/_seek.py BATCH FILE`), which makes an `Order`
and asks for step 10⁶: the first seek pays for whatever a process does for the first time. Then
come fresh orders at random steps, as in a process that has worked for a while. Memory is that of
the first seek, by Python's own count and by the kernel's, which tells pages of the mapped file from
others. Without the file's 800 MB of free disk the samples are one bucket without an index.

Started and read by loader.py.
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import numpy as np

from _measure import print_table, spread
from tasuki.data.buckets import Bucket, BucketPlan
from tasuki.data.order import Order

SAMPLES = 100_000_000
OTHERS = 1_000
"""Samples of a second bucket, which make the index necessary."""
STEP = 1_000_000
BATCHES = (8, 32)
ROUNDS = 5
SEEKS = 30
GOAL_S = 1e-3
GOAL_BYTES = 1_000_000
_BLOCK = 1 << 20


class Taken(NamedTuple):
    wall_s: float
    cpu_s: float
    """Page faults included; without what other people's processes take away."""


def measure(folder: Path) -> dict[str, Any]:
    index = _write_index(folder)
    indices = [None] if index is None else [index, None]
    cases = [(batch, path) for path in indices for batch in BATCHES]
    found: dict[tuple[int, Path | None], list[dict[str, float]]] = {case: [] for case in cases}
    for number in range(-1, ROUNDS):
        turn = number % len(cases)
        for case in cases[turn:] + cases[:turn]:
            facts = _ask_child(*case)
            if number >= 0:
                found[case].append(facts)
    return {
        "is_mapped": index is not None,
        "cases": [
            {
                "batch": batch,
                "is_mapped": path is not None,
                **{name: spread([f[name] for f in facts]) for name in facts[0]},
            }
            for (batch, path), facts in found.items()
        ],
    }


def _write_index(folder: Path) -> Path | None:
    """Samples of both buckets take turns in the data set, the others where there are some."""
    needed = 8 * (SAMPLES + OTHERS)
    if shutil.disk_usage(folder).free < 2 * needed:
        return None
    path = folder / "index"
    members = np.memmap(path, dtype=np.int64, mode="w+", shape=(SAMPLES + OTHERS,))
    members[:OTHERS] = np.arange(0, 2 * OTHERS, 2)
    for begin in range(0, SAMPLES, _BLOCK):
        number = np.arange(begin, min(begin + _BLOCK, SAMPLES))
        members[OTHERS + begin : OTHERS + begin + len(number)] = number + np.minimum(
            number + 1, OTHERS
        )
    return path


def _ask_child(batch: int, index: Path | None) -> dict[str, float]:
    command = [sys.executable, __file__, str(batch), *([str(index)] if index else [])]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    facts: dict[str, float] = json.loads(ran.stdout)
    return facts


# -- the child --------------------------------------------------------------------------------


def work(batch: int, index: str | None) -> dict[str, float]:
    plan = _plan(index)
    random = Random()
    before = _resident_bytes()
    first = _seek(plan, batch, STEP)
    after = _resident_bytes()
    last = -(-SAMPLES // batch)
    later = [_seek(plan, batch, random.randrange(STEP, last)) for _ in range(SEEKS)]
    tracemalloc.start()
    _seek(plan, batch, STEP)
    _, peak = tracemalloc.get_traced_memory()
    return {
        "first_s": first.wall_s,
        "first_cpu_s": first.cpu_s,
        "later_s": statistics.median(one.wall_s for one in later),
        "later_cpu_s": statistics.median(one.cpu_s for one in later),
        "python_bytes": peak,
        "own_bytes": after["RssAnon"] - before["RssAnon"],
        "mapped_bytes": sum(after[k] - before[k] for k in ("RssFile", "RssShmem")),
    }


def _plan(index: str | None) -> BucketPlan:
    if index is None:
        return BucketPlan(buckets=(Bucket(64, SAMPLES),), members=None)
    members = np.memmap(index, dtype=np.int64, mode="r")
    return BucketPlan(buckets=(Bucket(32, OTHERS), Bucket(64, SAMPLES)), members=members)


def _seek(plan: BucketPlan, batch: int, step: int) -> Taken:
    began, cpu_began = time.perf_counter(), time.thread_time()
    samples = Order(plan, seed=1, stage="bench", effective_batch=batch).step(0, step)
    taken = Taken(time.perf_counter() - began, time.thread_time() - cpu_began)
    assert len(samples.indices) > 0
    return taken


def _resident_bytes() -> dict[str, int]:
    def lines() -> Iterator[tuple[str, int]]:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("Rss"):
                name, kilobytes, _ = line.split()
                yield name.rstrip(":"), int(kilobytes) << 10

    return dict(lines())


# -- showing ----------------------------------------------------------------------------------


def show(found: dict[str, Any]) -> None:
    if not found["is_mapped"]:
        print("\nThere is no room for an index of 800 MB: one bucket without an index instead")
    print_table(
        f"The samples of step {STEP:,} of an epoch over {SAMPLES:,} samples of one bucket; medians "
        f"of {ROUNDS} fresh processes [quartiles]",
        [
            "",
            *("first ms", "CPU ms", "later ms", "CPU ms"),
            *("Python's peak, KB", "own pages, KB", "mapped, MB"),
            "goals",
        ],
        [
            [
                f"batch {case['batch']}, {'mapped index' if case['is_mapped'] else 'no index'}",
                *(
                    case[name].show(2, scale=1e3)
                    for name in ("first_s", "first_cpu_s", "later_s", "later_cpu_s")
                ),
                case["python_bytes"].show(0, scale=1e-3),
                case["own_bytes"].show(0, scale=1e-3),
                case["mapped_bytes"].show(0, scale=1e-6),
                _goals(case),
            ]
            for case in found["cases"]
        ],
    )


def _goals(case: dict[str, Any]) -> str:
    first, later = (case[name].median <= GOAL_S for name in ("first_cpu_s", "later_cpu_s"))
    bytes_used = max(case["python_bytes"].median, case["own_bytes"].median)
    words = {True: "met", False: "missed"}
    return (
        f"≤ 1 ms of CPU: first {words[first]}, later {words[later]}; "
        f"≤ 1 MB: {words[bytes_used <= GOAL_BYTES]}"
    )


if __name__ == "__main__":
    print(json.dumps(work(int(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None)))
