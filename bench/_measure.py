"""Measure on a machine that other people use too: interleaved, medians, spread, ratios.

Every round runs each case once, in an order that turns from round to round, so that a busy minute
hits all cases alike. A ratio or a difference is taken within a round; what is reported is its
median over the rounds. Absolute times of two runs are never compared.

Used by the programs of this folder. It knows nothing of tasuki.
"""

from __future__ import annotations

import gc
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

MIN_ROUNDS = 5
RESULTS = Path(__file__).parent / "results"
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """A median and the middle half around it."""

    median: float
    low: float
    """First quartile."""
    high: float
    """Third quartile."""
    rounds: int

    def __post_init__(self) -> None:
        assert self.rounds >= MIN_ROUNDS, f"{self.rounds} rounds are too few"

    def show(self, digits: int = 2, *, scale: float = 1.0) -> str:
        median, low, high = (x * scale for x in (self.median, self.low, self.high))
        return f"{median:.{digits}f} [{low:.{digits}f} … {high:.{digits}f}]"


def spread(values: Sequence[float]) -> Spread:
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return Spread(median=median, low=low, high=high, rounds=len(values))


def ratios(values: Sequence[float], baseline: Sequence[float]) -> Spread:
    """Round by round, each value over the baseline of its own round."""
    return spread([value / base for value, base in zip(values, baseline, strict=True)])


def differences(values: Sequence[float], baseline: Sequence[float]) -> Spread:
    """Round by round, each value less the baseline of its own round."""
    return spread([value - base for value, base in zip(values, baseline, strict=True)])


def run_interleaved(cases: Mapping[str, Callable[[], T]], *, rounds: int) -> dict[str, list[T]]:
    """Each case once per round, after a warm-up round that is thrown away."""
    found: dict[str, list[T]] = {name: [] for name in cases}
    names = list(cases)
    for number in range(-1, rounds):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            gc.collect()
            result = cases[name]()
            if number >= 0:
                found[name].append(result)
    return found


def rounds_within(budget_s: float, *, most: int) -> Iterator[int]:
    """Fewer rounds when the machine is busy and the budget is used up; never below MIN_ROUNDS."""
    until = time.monotonic() + budget_s
    for number in range(most):
        if number >= MIN_ROUNDS and time.monotonic() > until:
            return
        yield number


def machine_facts(*packages: str) -> dict[str, Any]:
    """What the figures depend on; `packages` are the installed ones whose versions matter."""
    return {
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "load_1min": round(os.getloadavg()[0], 2),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "commit": _commit(),
        **{name: metadata.version(name) for name in packages},
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _commit() -> str | None:
    """With a `+` when the sources differ from it."""
    command = ["git", "describe", "--always", "--abbrev=12", "--dirty=+"]
    try:
        found = subprocess.run(
            command, cwd=RESULTS.parent, capture_output=True, text=True, timeout=20, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip()


def print_table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """The first column to the left, figures to the right."""
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    print(f"\n{title}")
    for row in [head, ["─" * width for width in widths], *rows]:
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        print("  " + "   ".join(cells).rstrip())


def print_facts(facts: Mapping[str, Any]) -> None:
    print(", ".join(f"{key} {value}" for key, value in facts.items()))


def write_results(name: str, value: Mapping[str, Any]) -> None:
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(value, indent=2, default=_plain) + "\n")
    print(f"\nwritten: {path}", file=sys.stderr)


def _plain(value: object) -> Any:
    if isinstance(value, Spread):
        return asdict(value)
    raise TypeError(f"{type(value).__name__} does not go into a results file")
