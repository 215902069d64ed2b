"""The end of `tasuki demo` in the terminal: stages, attempts, where the time went, the proof.

The report of any run, as a page to mail, is views/report/.
"""

from __future__ import annotations

from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tasuki.units import format_seconds
from tasuki.views.status import bar
from tasuki.views.text import count, money, number


def show_report(report: dict[str, Any], *, console: Console | None = None) -> None:
    console = console or Console()
    console.rule("report", align="left")
    console.print(_stages(report))
    console.print(_attempts(report))
    console.print(_ledger(report))
    if report["cost"] is not None:
        hours = number(report["gpu_hours"])
        console.print(f"cost {money(report['cost'])} for {hours} GPU-hours", highlight=False)
    _print_error(report, console)
    _print_proof(report, console)


def _stages(report: dict[str, Any]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("stage", "steps", "last loss", "evaluated"):
        table.add_column(name)
    for stage in report["stages"]:
        told = ", ".join(f"{escape(k)} {number(v)}" for k, v in (stage["metrics"] or {}).items())
        table.add_row(escape(stage["name"]), count(stage["steps"]), number(stage["loss"]), told)
    return table


def _attempts(report: dict[str, Any]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("attempt", "job", "lasted", "ended"):
        table.add_column(name)
    for attempt in report["attempts"]:
        seconds = attempt["seconds"]
        table.add_row(
            str(attempt["attempt"]),
            escape(attempt["job"] or "–"),
            format_seconds(seconds) if seconds is not None else "–",
            _ended(attempt),
        )
    return table


def _ended(attempt: dict[str, Any]) -> str:
    if attempt["ending"] == "handed-over":
        return f"handed over: {attempt['cause']}"
    return attempt["ending"] or "without a word"


def _ledger(report: dict[str, Any]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("where the time went", "", ""):
        table.add_column(name)
    wall = report["wall_s"] or 1.0
    for part, seconds in report["ledger"].items():
        if seconds >= 0.005:
            share = seconds / wall
            table.add_row(
                part.replace("_", " "), bar(share, 24), f"{format_seconds(seconds)} {share:.0%}"
            )
    table.add_row("wall clock", "", format_seconds(wall))
    return table


def _print_error(report: dict[str, Any], console: Console) -> None:
    before, after = report["error_before"], report["error_after"]
    if before is not None and after is not None:
        words = f"error of the largest eigenvalue: {before:.1f} % untrained → {after:.1f} % trained"
        if (guess := report.get("error_of_guess")) is not None:
            words += f"; guessing the mean: {guess:.1f} %"
        console.print(words, highlight=False)


def _print_proof(report: dict[str, Any], console: Console) -> None:
    console.print(
        f"\n{len(report['jobs'])} jobs of at most {format_seconds(report['limit_s'])}, "
        f"{len(report['attempts'])} attempts, {report['preemptions']} preempted; against an "
        "undisturbed run of the same spec, byte for byte:",
        highlight=False,
    )
    for check in report["checks"]:
        mark = "[green]equal[/]" if check["equal"] else "[red]DIFFERENT[/]"
        console.print(f"  {mark}  {escape(check['what'])}", highlight=False)
