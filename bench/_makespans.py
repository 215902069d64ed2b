"""How long whole examples take: the plan's own p10 to p90 beside real runs of them.

Each example is copied to a scratch folder and run once, so that there is history; then it is
planned anew, and run five times as planned. A run takes from the start of its first job to the end
of its last one, as its events tell; the median must lie between the plan's p10 and p90.

Part of pack.py; alone: `python bench/_makespans.py`. BENCH_RUNS sets the number of runs,
BENCH_EXAMPLES names the examples, with commas.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from _measure import machine_facts, print_facts, print_table
from tasuki.runs.events import read_events
from tasuki.runs.runs import RunFolder

EXAMPLES = tuple(os.environ.get("BENCH_EXAMPLES", "lora_five,matrix_gnn").split(","))
RUNS = int(os.environ.get("BENCH_RUNS", "5"))
_WITHIN_S = 900.0
_SETTINGS = ("--set", "expect=null")
"""What is given would win over what past runs tell, and has no error bar."""
_ROOT = Path(__file__).resolve().parent.parent


def measure(examples: tuple[str, ...] = EXAMPLES) -> dict[str, Any]:
    """Prints a table; the values of it."""
    told = {name: _measure(name) for name in examples}
    rows = [
        [
            name,
            *(f"{case[key]:.1f} s" for key in ("planned_s", "p10_s", "p90_s", "median_s")),
            " ".join(f"{seconds:.1f}" for seconds in case["taken_s"]),
            "yes" if case["is_covered"] else "no",
        ]
        for name, case in told.items()
    ]
    head = ["", "planned", "p10", "p90", "taken, median", "each", "median within"]
    print_table("Planned and real makespans of whole examples", head, rows)
    return told


def _measure(name: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / name
        shutil.copytree(_ROOT / "examples" / name, folder, ignore=shutil.ignore_patterns("runs*"))
        if (folder / "generate.py").exists():
            _ask(folder, "generate.py")
        _ask(folder, "-m", "tasuki", "run", *_SETTINGS, "--json")
        plan = json.loads(_ask(folder, "-m", "tasuki", "plan", *_SETTINGS, "--new", "--json"))
        taken = [_run(folder) for _ in range(RUNS)]
    low, high = plan["makespan_s_p10"], plan["makespan_s_p90"]
    return {
        "planned_s": plan["makespan_s"],
        "p10_s": low,
        "p90_s": high,
        "taken_s": taken,
        "median_s": median(taken),
        "is_covered": low <= median(taken) <= high,
    }


def _run(folder: Path) -> float:
    said = json.loads(_ask(folder, "-m", "tasuki", "run", *_SETTINGS, "--new", "--json"))
    runs = [RunFolder(folder / "runs" / run["experiment"]) for run in said["runs"]]
    events = [event for run in runs for event in read_events(run)]
    begun = min(event["t"] for event in events if event["kind"] == "attempt-started")
    ended = max(event["t"] for event in events if event["kind"] == "attempt-ended")
    print(f"  {folder.name}: {ended - begun:.1f} s", file=sys.stderr)
    return float(ended - begun)


def _ask(folder: Path, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        check=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        timeout=_WITHIN_S,
    )
    return done.stdout.decode()


if __name__ == "__main__":
    measure()
    print_facts(machine_facts("torch"))
