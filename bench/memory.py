"""Is the memory of a step what a memory probe foretells, and what follows from it?

Run as `python bench/memory.py`, or with the names of some parts: `… memory.py peaks largest`. Each
part is in a file of its own, says there what it compares, and takes up to four minutes on one core:

    peaks     _peaks.py     the peak of a step's tensors beside real steps and torch's profiler
    largest   _largest.py   the largest batch under a limit, beside real steps under that limit
    speed     _speed.py     what a prediction costs
    wall      _wall.py      wall times from past runs
    caps      _caps.py      training under random limits

`BENCH_CASES` chooses cases, as each part says. A part whose file is not there is left out.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from _measure import machine_facts, print_facts, write_results

NAMES = ("peaks", "largest", "speed", "wall", "caps")


def main(wanted: list[str]) -> int:
    there = [name for name in NAMES if Path(__file__).with_name(f"_{name}.py").exists()]
    if unknown := set(wanted) - set(there):
        sys.exit(f"error: there is no part {', '.join(unknown)}; there are {', '.join(there)}")
    facts = machine_facts("tasuki", "torch")
    print_facts(facts)
    results: dict[str, Any] = {}
    for name in wanted or there:
        part: ModuleType = importlib.import_module(f"_{name}")
        results[name] = part.measure()
        if hasattr(part, "show"):
            part.show(results[name])
        sys.stdout.flush()
    if not wanted:
        write_results("memory", {"machine": facts, **results})
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
