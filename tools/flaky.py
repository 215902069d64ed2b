"""Find tests that fail at random: run the quick suite many times, under different conditions.

    .venv/bin/python -m tools.flaky plain=10 loaded=5 shuffled=5
    .venv/bin/python -m tools.flaky loaded=3 four=1 -- tests/unit/jobs

A condition and how often: `plain` is as `make test`, `loaded` has two busy loops next to it,
`shuffled` another order each time, `one` one worker and `four` four workers. What follows `--` goes
to pytest. A table of the runs and the failed tests is printed at the end.
Exit codes: 0 all green, 1 a test failed in a run, 2 usage.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[1]
SEED = "SHUFFLED_ORDER"  # the number of the order, for the workers of pytest-xdist
WORKERS = {"plain": 2, "loaded": 2, "shuffled": 2, "one": 1, "four": 4}
TIMEOUT_S = 3600.0


class Result(NamedTuple):
    """One run of the suite."""

    condition: str
    seconds: float
    num_passed: int
    failed: list[str]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Shuffle the files, and the tests in each. All workers load this plugin and get one order."""
    if seed := os.environ.get(SEED):
        chance = random.Random(seed)
        places = {str(item.path): chance.random() for item in items}
        # Not over all files: fixtures of a module would be made again for each of its tests.
        items.sort(key=lambda item: (places[str(item.path)], chance.random()))


def main(words: Sequence[str]) -> int:
    cut = words.index("--") if "--" in words else len(words)
    try:
        asked = [(name, int(count)) for name, _, count in (w.partition("=") for w in words[:cut])]
    except ValueError:
        asked = []
    if not asked or any(name not in WORKERS for name, _ in asked):
        print(f"usage: python -m tools.flaky CONDITION=COUNT …  with {', '.join(WORKERS)}")
        return 2
    results = []
    for condition, count in asked:
        for number in range(1, count + 1):
            result = run_suite(condition, number, words[cut + 1 :])
            results.append(result)
            print(format_result(result), flush=True)
    print(format_table(results))
    return int(any(result.failed for result in results))


def run_suite(condition: str, number: int, arguments: Sequence[str]) -> Result:
    """Run the quick suite once, in an empty temporary folder."""
    environment = {**os.environ, **({SEED: str(number)} if condition == "shuffled" else {})}
    with tempfile.TemporaryDirectory(prefix="tasuki-flaky-") as folder, keep_busy(condition):
        report = Path(folder, "report.xml")
        began = time.monotonic()
        subprocess.run(
            [
                *(sys.executable, "-m", "pytest", "-q", "-p", "tools.flaky", "-m", "not long"),
                *("-n", str(WORKERS[condition]), "--dist", "worksteal"),
                *(f"--junitxml={report}", f"--basetemp={folder}/t", *arguments),
            ],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.DEVNULL,
            timeout=TIMEOUT_S,
            check=False,  # the report tells what failed
        )
        num_passed, failed = read_report(report)
        return Result(condition, time.monotonic() - began, num_passed, failed)


@contextmanager
def keep_busy(condition: str) -> Iterator[None]:
    """Let two processes use a core each."""
    words = (sys.executable, "-c", "while True: pass")
    loops = [subprocess.Popen(words) for _ in range(2 * (condition == "loaded"))]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def read_report(report: Path) -> tuple[int, list[str]]:
    """Return how many tests passed, and the names of those that failed."""
    if not report.exists():
        return 0, ["pytest itself: it wrote no report"]
    num_passed, failed = 0, []
    for case in ET.parse(report).iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            failed.append(f"{case.get('classname')}::{case.get('name')}")
        elif case.find("skipped") is None:
            num_passed += 1
    return num_passed, failed


def format_result(result: Result) -> str:
    line = f"{result.condition:<9} {result.seconds:6.0f} s {result.num_passed:6} passed"
    return "\n".join([f"{line} {len(result.failed):3} failed", *(f"  {n}" for n in result.failed)])


def format_table(results: Sequence[Result]) -> str:
    lines = ["", "condition  green of runs"]
    for condition in dict.fromkeys(result.condition for result in results):
        own = [result for result in results if result.condition == condition]
        lines.append(f"{condition:<10} {sum(not r.failed for r in own)} of {len(own)}")
    counts = Counter(name for result in results for name in result.failed)
    lines += [f"{count:3} × {name}" for name, count in counts.most_common()]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
