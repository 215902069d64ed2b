"""How quickly the command line and the supervisor answer, and what they import.

Run as `python bench/cli.py`; about half a minute. Baseline: an interpreter that imports json and
subprocess. Exit code 1 when torch or numpy is imported where nobody trains.

All processes read bytecode from a folder made for this run, as from an installed wheel, whatever
PYTHONDONTWRITEBYTECODE says.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from _measure import (
    machine_facts,
    print_facts,
    print_table,
    ratios,
    run_interleaved,
    spread,
    write_results,
)

ROUNDS = 20
GOAL = 3.0
GOAL_FOR = ("tasuki --help", "supervisor, finished run")
BASELINE = "import json, subprocess"
LOOKED_FOR = ("torch", "numpy", "msgspec", "rich", "ruamel", "click")
FORBIDDEN = ("torch", "numpy")

_PROBE = """
import sys
sys.argv[:] = {argv!r}
try:
    {entry}
except SystemExit:
    pass
sys.stderr.write("\\n" + " ".join(sys.modules))
"""
_CLI = "from tasuki.cli import main; main()"
_SUPERVISOR = "import runpy; runpy.run_module('tasuki.jobs', run_name='__main__')"


class Case(NamedTuple):
    command: list[str]
    entry: str
    """Python that does the same; what it imported can then be asked."""
    argv: list[str]


class Cost(NamedTuple):
    wall_s: float
    cpu_s: float


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="tasuki-bench-") as folder:
        environment = _environment(Path(folder) / "bytecode")
        project = _finish_run(Path(folder) / "project", environment)
        cases = _cases(project)
        costs = _measure(cases, project, environment)
        imports = {name: _imported(case, project, environment) for name, case in cases.items()}
    facts = machine_facts("tasuki", "click", "rich", "msgspec")
    print_facts(facts)
    figures = _figures(costs)
    _show(figures, imports)
    write_results("cli", {"machine": facts, "cases": figures, "imports": imports})
    guilty = _guilty(imports)
    for line in guilty:
        print(f"error: {line}", file=sys.stderr)
    return 1 if guilty else 0


def _environment(bytecode: Path) -> dict[str, str]:
    kept = {
        key: value
        for key, value in os.environ.items()
        if key != "PYTHONDONTWRITEBYTECODE" and not key.startswith("TASUKI_")
    }
    return {**kept, "PYTHONPYCACHEPREFIX": str(bytecode), "NO_COLOR": "1"}


def _finish_run(project: Path, environment: dict[str, str]) -> Path:
    """The project of `tasuki new`, trained to its end."""
    tasuki = [sys.executable, "-m", "tasuki"]
    for arguments in (["new", str(project)], ["run", "--set", "epochs=1"]):
        subprocess.run(
            [*tasuki, *arguments],
            cwd=project if project.exists() else project.parent,
            env=environment,
            capture_output=True,
            timeout=120,
            check=True,
        )
    return project


def _cases(project: Path) -> dict[str, Case]:
    [job] = (project / "runs" / ".jobs").iterdir()
    tasuki = str(Path(sys.executable).with_name("tasuki"))
    python = sys.executable

    def verb(*arguments: str) -> Case:
        return Case([tasuki, *arguments], _CLI, ["tasuki", *arguments])

    return {
        BASELINE: Case([python, "-c", BASELINE], BASELINE, []),
        "tasuki --help": verb("--help"),
        "tasuki status": verb("status"),
        "tasuki status --runs": verb("status", "--runs", "runs"),
        "supervisor, finished run": Case(
            [python, "-m", "tasuki.jobs", str(job)], _SUPERVISOR, ["supervisor", str(job)]
        ),
    }


def _measure(
    cases: dict[str, Case], project: Path, environment: dict[str, str]
) -> dict[str, list[Cost]]:
    def timer(case: Case) -> Callable[[], Cost]:
        return lambda: _time(case.command, project, environment)

    timers = {name: timer(case) for name, case in cases.items()}
    return run_interleaved(timers, rounds=ROUNDS)


def _time(command: Sequence[str], cwd: Path, environment: dict[str, str]) -> Cost:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.perf_counter()
    subprocess.run(command, cwd=cwd, env=environment, capture_output=True, timeout=60, check=True)
    wall = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Cost(wall, used)


def _imported(case: Case, cwd: Path, environment: dict[str, str]) -> dict[str, Any]:
    probe = _PROBE.format(argv=case.argv, entry=case.entry)
    ran = subprocess.run(
        [sys.executable, "-c", probe],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    modules = ran.stderr.splitlines()[-1].split()
    packages = {name.partition(".")[0] for name in modules}
    return {
        "modules": len(modules),
        "found": {name: name in packages for name in LOOKED_FOR},
    }


def _figures(costs: dict[str, list[Cost]]) -> dict[str, dict[str, Any]]:
    wall = {name: [cost.wall_s for cost in found] for name, found in costs.items()}
    cpu = {name: [cost.cpu_s for cost in found] for name, found in costs.items()}
    return {
        name: {
            "wall_s": spread(wall[name]),
            "cpu_s": spread(cpu[name]),
            "wall_ratio": ratios(wall[name], wall[BASELINE]),
            "cpu_ratio": ratios(cpu[name], cpu[BASELINE]),
            "goal": GOAL if name in GOAL_FOR else None,
        }
        for name in costs
    }


def _show(figures: dict[str, dict[str, Any]], imports: dict[str, dict[str, Any]]) -> None:
    print_table(
        f"Time to answer, medians of {ROUNDS} interleaved rounds [quartiles], bytecode warm",
        ["case", "wall ms", "CPU ms", "wall ratio", "CPU ratio", "goal"],
        [
            [
                name,
                found["wall_s"].show(1, scale=1000),
                found["cpu_s"].show(1, scale=1000),
                found["wall_ratio"].show(),
                found["cpu_ratio"].show(),
                _goal(found),
            ]
            for name, found in figures.items()
        ],
    )
    print_table(
        "Imported",
        ["case", "modules", *LOOKED_FOR],
        [
            [name, str(seen["modules"]), *("yes" if seen["found"][m] else "–" for m in LOOKED_FOR)]
            for name, seen in imports.items()
        ],
    )


def _goal(found: dict[str, Any]) -> str:
    if found["goal"] is None:
        return ""
    is_met = found["wall_ratio"].median <= found["goal"]
    return f"≤ {found['goal']:.0f}: {'met' if is_met else 'missed'}"


def _guilty(imports: dict[str, dict[str, Any]]) -> list[str]:
    return [
        f"`{name}` imports {module}"
        for name, seen in imports.items()
        for module in FORBIDDEN
        if seen["found"][module]
    ]


if __name__ == "__main__":
    sys.exit(main())
