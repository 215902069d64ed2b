"""What was given to Slurm, or would be: jobs, what they wait for, and the commands."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.markup import escape

from tasuki.views.plan import show_plan
from tasuki.views.text import neutral, say


def show_submitted(
    values: dict[str, Any],
    *,
    python: str,
    runs: str,
    is_dry: bool,
    console: Console | None = None,
    unit: str = "GPU",
) -> None:
    console = console or Console()
    if values["jobs"]:
        show_plan(
            values["plan"], python=python, runs=runs, console=console, commands=False, unit=unit
        )
        console.print("what waits for what:")
        for line in _graph(values["jobs"]):
            console.print(f"  {escape(line)}", highlight=False, soft_wrap=True)
    if is_dry and values["jobs"]:
        _show_scripts(values["jobs"], console)
    for note in values["notes"] if is_dry or not values["jobs"] else ():
        say(console, note)
    if not values["jobs"] and not values["notes"]:
        console.print("nothing left to do")
    elif not is_dry:
        console.print("`tasuki status` shows how it goes; `tasuki cancel RUN` ends a run, saved")


def _graph(jobs: list[dict[str, Any]]) -> list[str]:
    """A line for each job, with Slurm's number where it has one."""
    names = {job["name"]: job["number"] or job["name"] for job in jobs}
    lines = []
    for job in jobs:
        number = f"job {job['number']}  " if job["number"] else ""
        after = ", ".join(names.get(name, name) for name in job["after"])
        waits = f"  after {after}" if after else ""
        lines.append(f"{number}{job['name']}  {', '.join(job['runs'])}{waits}")
    return lines


def _show_scripts(jobs: list[dict[str, Any]], console: Console) -> None:
    console.print("\njob.sh, the same for all of them:", highlight=False)
    console.print(escape(jobs[0]["script"]), highlight=False, soft_wrap=True)
    for job in jobs:
        console.print(f"{job['name']}/submit.sh:", highlight=False)
        console.print(escape(neutral(job["submit"])), highlight=False, soft_wrap=True)
