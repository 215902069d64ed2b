"""Measure on a machine that other people use too: interleaved rounds, medians, quartiles, ratios.

Every round runs each case once, in an order that rotates from round to round, so that a busy minute
hits all cases alike. A ratio or a difference is taken within a round; what is reported is its
median over the rounds. Absolute times of two runs are never compared.

`run_bench` is the main program of every bench: it runs the parts, prints their figures and writes
them to results/. With `--smoke` (or BENCH_SMOKE=1) sizes are the smallest (`sized`), nothing is
written, and the figures mean nothing: it only shows that the bench still works.

Imports nothing of tasuki, so that workers in other environments can use it.
"""

from __future__ import annotations

import gc
import json
import os
import platform
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

RESULTS = Path(__file__).parent / "results"
SMOKE = "--smoke"
IS_SMOKE = SMOKE in sys.argv or os.environ.get("BENCH_SMOKE") == "1"
if IS_SMOKE:
    os.environ["BENCH_SMOKE"] = "1"  # workers are started with this environment
    sys.argv = [word for word in sys.argv if word != SMOKE]
MIN_ROUNDS = 1 if IS_SMOKE else 5
T = TypeVar("T")


def sized(full: T, smoke: T, variable: str = "") -> T:
    """A size, count or list of cases; `variable` of the environment overrides an integer."""
    if variable and variable in os.environ:
        return type(full)(os.environ[variable])  # type: ignore[call-arg]
    return smoke if IS_SMOKE else full


# -- statistics -------------------------------------------------------------------------------


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

    def show(self, digits: int = 2) -> str:
        return f"{self.median:.{digits}f} [{self.low:.{digits}f} … {self.high:.{digits}f}]"


def spread(values: Sequence[float], *, scale: float = 1.0) -> Spread:
    values = [value * scale for value in values]
    if len(values) == 1:
        return Spread(median=values[0], low=values[0], high=values[0], rounds=1)
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return Spread(median=median, low=low, high=high, rounds=len(values))


def ratios(values: Sequence[float], baseline: Sequence[float]) -> Spread:
    """Each value over the baseline of its round."""
    return spread([value / base for value, base in zip(values, baseline, strict=True)])


def differences(
    values: Sequence[float], baseline: Sequence[float], *, scale: float = 1.0
) -> Spread:
    """Each value minus the baseline of its round."""
    pairs = zip(values, baseline, strict=True)
    return spread([value - base for value, base in pairs], scale=scale)


# -- rounds -----------------------------------------------------------------------------------


def run_interleaved(cases: Mapping[str, Callable[[], T]], *, rounds: int) -> dict[str, list[T]]:
    """Each case once per round, after a warm-up round that is not counted; not in a smoke run."""
    results: dict[str, list[T]] = {name: [] for name in cases}
    for number in range(0 if IS_SMOKE else -1, rounds):
        for name in rotated(list(cases), number):
            gc.collect()
            result = cases[name]()
            if number >= 0:
                results[name].append(result)
    return results


def rotated(names: Sequence[T], number: int) -> list[T]:
    """The order of round `number`: it starts with another case each time."""
    first = number % len(names)
    return [*names[first:], *names[:first]]


def rounds_within(budget_s: float, *, max_rounds: int) -> Iterator[int]:
    """Fewer rounds when the machine is busy and the budget is used up; never below MIN_ROUNDS."""
    until = time.monotonic() + budget_s
    for number in range(max_rounds):
        if number >= MIN_ROUNDS and time.monotonic() > until:
            return
        yield number


class Took(NamedTuple):
    wall_s: float
    cpu_s: float
    stdout: str = ""


def timed(work: Callable[[], object]) -> Took:
    """The CPU time is that of this process."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return Took(time.perf_counter() - wall, time.process_time() - cpu)


def run_timed(
    command: Sequence[str],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float = 600.0,
) -> Took:
    """Run a command to its end; the CPU time is that of the process and its children."""
    before, began = _children_cpu_s(), time.perf_counter()
    done = subprocess.run(
        command, cwd=cwd, env=env, capture_output=True, text=True, timeout=timeout, check=False
    )
    took = Took(time.perf_counter() - began, _children_cpu_s() - before, done.stdout)
    if done.returncode:
        sys.exit(f"error: {command} ended with {done.returncode}\n{done.stderr[-4000:]}")
    return took


def _children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


# -- the main program of a bench --------------------------------------------------------------


class Figure(NamedTuple):
    """One row of a bench's table."""

    what: str
    against: str
    value: Spread | float | str
    unit: str = "×"
    goal: float | None = None
    """The largest value that is good enough."""
    digits: int = 2

    def cells(self) -> list[str]:
        """What the table shows of it."""
        value = self.value
        if isinstance(value, Spread):
            shown, median = value.show(self.digits), value.median
        elif isinstance(value, str):
            shown, median = value, 0.0
        else:
            shown, median = f"{value:.{self.digits}f}", value
        goal = ""
        if self.goal is not None and not IS_SMOKE:
            goal = f"≤ {self.goal:g}: {'met' if median <= self.goal else 'MISSED'}"
        return [self.what, self.against, shown, self.unit, goal]


Part = Callable[[Path], list[Figure]]
"""Measures in a temporary folder. A broken promise, unlike a missed goal, ends it with an error."""


def run_bench(
    name: str, parts: Mapping[str, Part], *, packages: Sequence[str] = (), folder: str | None = None
) -> int:
    """Run the parts named on the command line, else all of them; these go to results/.

    `folder` is where the temporary folders are made, `packages` are named with their versions.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # with all clean-up
    wanted = sys.argv[1:]
    if unknown := set(wanted) - set(parts):
        print(
            f"error: unknown part {', '.join(unknown)}; known: {', '.join(parts)}", file=sys.stderr
        )
        return 2
    facts = machine_facts("tasuki", *packages)
    print(", ".join(f"{key} {value}" for key, value in facts.items()))
    results: dict[str, list[dict[str, Any]]] = {}
    for part in wanted or parts:
        with tempfile.TemporaryDirectory(prefix="tasuki-bench-", dir=folder) as temporary:
            figures = parts[part](Path(temporary))
        print_table(
            f"{name}: {part}",
            ["", "against", "median [quartiles]", "", "goal"],
            [figure.cells() for figure in figures],
        )
        sys.stdout.flush()
        results[part] = [figure._asdict() for figure in figures]
    if not wanted and not IS_SMOKE:
        write_results(name, {"machine": facts, **results})
    return 0


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
        described = subprocess.run(
            command, cwd=RESULTS.parent, capture_output=True, text=True, timeout=20, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return described.stdout.strip()


def print_table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    print(f"\n{title}")
    for row in [head, ["─" * width for width in widths], *rows]:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        print("  " + "   ".join(cells).rstrip())


def write_results(name: str, value: Mapping[str, Any]) -> None:
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(value, indent=2, default=asdict) + "\n")
    print(f"\nwritten: {path}", file=sys.stderr)
