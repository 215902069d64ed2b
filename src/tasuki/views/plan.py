"""A plan as a table: jobs, what is in them, how long, how that is known, and the commands."""

from __future__ import annotations

import shlex
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from tasuki.units import format_seconds
from tasuki.views.text import count, neutral


def show_plan(
    plan: dict[str, Any], *, python: str, runs: str, console: Console | None = None
) -> None:
    console = console or Console()
    if not plan["jobs"]:
        console.print("nothing left to do")
    else:
        console.print(_table(plan))
        _print_commands(plan, python, runs, console)
    for warning in plan["warnings"]:
        console.print(f"[yellow]warning:[/] {_plain(warning)}", highlight=False)


def _table(plan: dict[str, Any]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("job", "limit", "work", "steps", "batch", "expected", "total", "known from"):
        table.add_column(
            name, justify="right" if name in ("limit", "expected", "total") else "left"
        )
    total: float | None = 0.0
    for job in plan["jobs"]:
        is_first = True
        for piece in [p for lane in job["lanes"] for p in lane["stages"]]:
            total = (
                None
                if total is None or piece["expected_s"] is None
                else total + piece["expected_s"]
            )
            table.add_row(
                job["name"] if is_first else "",
                _time(job["limit_s"]) if is_first else "",
                f"{piece['kind']} {piece['experiment']}/{piece['stage']}",
                _steps(piece),
                _batch(piece),
                _time(piece["expected_s"]),
                _time(total),
                piece["source"],
            )
            is_first = False
        table.add_section()
    return table


def _steps(piece: dict[str, Any]) -> str:
    if piece["kind"] != "train":
        return ""
    if piece["to_step"] is None:
        return "–"
    return f"{count(piece['from_step'])} – {count(piece['to_step'])}"


def _batch(piece: dict[str, Any]) -> str:
    if piece["kind"] != "train" or piece["micro_batch"] is None:
        return ""
    return f"{piece['effective_batch']} = {piece['micro_batch']} × {piece['accumulation']}"


def _time(seconds: float | None) -> str:
    return "–" if seconds is None else format_seconds(seconds)


def _print_commands(plan: dict[str, Any], python: str, runs: str, console: Console) -> None:
    console.print("commands:")
    for job in plan["jobs"]:
        after = f"  # after {', '.join(job['after'])}" if job["after"] else ""
        words = [python, "-m", "tasuki.supervisor", f"{runs}/.jobs/{job['name']}"]
        console.print(f"  {_plain(shlex.join(words))}{after}", highlight=False, soft_wrap=True)


def _plain(text: str) -> str:
    from rich.markup import escape

    return escape(neutral(text))
