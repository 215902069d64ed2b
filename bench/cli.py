"""How quickly the command line and the supervisor answer.

Run as `python bench/cli.py`; about half a minute. Baseline: an interpreter that imports json and
subprocess. Exit code 1 when torch or numpy is imported where nothing is trained.

All processes read bytecode from a folder made for this run, as from an installed wheel.
"""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

from _measure import Figure, ratios, run_bench, run_interleaved, run_timed, sized

ROUNDS = sized(20, smoke=1)
GOAL = 3.0
BASELINE = "import json, subprocess"
CASES = ("tasuki --help", "supervisor, finished run")
FORBIDDEN = ("torch", "numpy")
_IMPORTS = """
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


def measure(folder: Path) -> list[Figure]:
    environment = _environment(folder / "bytecode")
    project = _finish_run(folder / "project", environment)
    [job] = (project / "runs" / ".jobs").iterdir()
    python, tasuki = sys.executable, str(Path(sys.executable).with_name("tasuki"))
    _check_imports(_CLI, ["tasuki", "--help"], project, environment)
    _check_imports(_SUPERVISOR, ["supervisor", str(job)], project, environment)
    commands = {
        BASELINE: [python, "-c", BASELINE],
        "tasuki --help": [tasuki, "--help"],
        "supervisor, finished run": [python, "-m", "tasuki.jobs", str(job)],
    }
    timers = {
        name: partial(run_timed, command, cwd=project, env=environment)
        for name, command in commands.items()
    }
    taken = run_interleaved(timers, rounds=ROUNDS)
    figures = []
    for name in CASES:
        for title, index in (("", 0), (", CPU time", 1)):
            values, base = ([one[index] for one in taken[key]] for key in (name, BASELINE))
            figures.append(Figure(name + title, BASELINE, ratios(values, base), goal=GOAL))
    return figures


def _environment(bytecode: Path) -> dict[str, str]:
    kept = {
        key: value
        for key, value in os.environ.items()
        if key != "PYTHONDONTWRITEBYTECODE" and not key.startswith("TASUKI_")
    }
    return {**kept, "PYTHONPYCACHEPREFIX": str(bytecode), "NO_COLOR": "1"}


def _finish_run(project: Path, environment: dict[str, str]) -> Path:
    """The project of `tasuki new`, trained to its end."""
    for arguments in (["new", str(project)], ["run", "--set", "epochs=1"]):
        cwd = project if project.exists() else project.parent
        run_timed([sys.executable, "-m", "tasuki", *arguments], cwd=cwd, env=environment)
    return project


def _check_imports(entry: str, argv: list[str], project: Path, environment: dict[str, str]) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", _IMPORTS.format(argv=argv, entry=entry)],
        cwd=project,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    modules = set(ran.stderr.splitlines()[-1].split())
    if slow := modules & set(FORBIDDEN):
        sys.exit(f"error: `{' '.join(argv)}` imports {', '.join(sorted(slow))}")


if __name__ == "__main__":
    sys.exit(run_bench("cli", {"start": measure}, packages=("click", "rich", "msgspec")))
