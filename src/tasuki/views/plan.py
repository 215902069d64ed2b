"""A plan as a table: jobs, what is in them, how long, how that is known, and the commands."""

from __future__ import annotations

import shlex
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from tasuki.units import format_seconds
from tasuki.views.text import count, money, neutral, warn

_NARROW = 70
_ROOMY = 100
_FORETOLD = ("predicted", "history")
"""Batches that may turn out otherwise."""


def show_plan(
    plan: dict[str, Any],
    *,
    python: str,
    runs: str,
    console: Console | None = None,
    commands: bool = True,
) -> None:
    console = console or Console()
    if not plan["jobs"]:
        console.print("nothing left to do")
    else:
        if console.width < _NARROW:
            _print_list(plan, console)
        else:
            console.print(_table(plan, has_costs=_has_costs(plan) and console.width >= _ROOMY))
        if plan["cost"] is not None:
            console.print(f"cost {money(plan['cost'])}", highlight=False)
        if commands:
            _print_commands(plan, python, runs, console)
    for warning in plan["warnings"]:
        warn(console, warning)


def _print_list(plan: dict[str, Any], console: Console) -> None:
    """For a narrow window."""
    for job in plan["jobs"]:
        console.print(
            f"job {job['name'].rsplit('-', 1)[-1]}  limit {_time(job['limit_s'])}", highlight=False
        )
        for piece in [p for lane in job["lanes"] for p in lane["stages"]]:
            words = f"  {piece['kind']} {piece['stage']}  {_time(piece['expected_s'])}"
            console.print(words, highlight=False)


def _has_costs(plan: dict[str, Any]) -> bool:
    return any(job["cost"] is not None for job in plan["jobs"])


def _table(plan: dict[str, Any], *, has_costs: bool) -> Table:
    pieces = [p for job in plan["jobs"] for lane in job["lanes"] for p in lane["stages"]]
    several = len({piece["experiment"] for piece in pieces}) > 1
    table = Table(
        box=box.SIMPLE_HEAD, pad_edge=False, title=f"plan {plan['id']}", title_justify="left"
    )
    for name in ("job", "limit", "work", "steps", "batch", "time", "total", "known from"):
        table.add_column(name, justify="right" if name in ("time", "total") else "left")
    if has_costs:
        table.add_column("cost", justify="right")
    total: float | None = 0.0
    for job in plan["jobs"]:
        first = (job["name"].rsplit("-", 1)[-1], _time(job["limit_s"]))
        last = [money(job["cost"])] if has_costs else []
        lanes = [(len(lane["gpus"]), piece) for lane in job["lanes"] for piece in lane["stages"]]
        for ranks, piece in lanes:
            seconds = piece["expected_s"]
            total = None if total is None or seconds is None else total + seconds
            where = f"{piece['experiment']}/" if several else ""
            table.add_row(
                *first,
                f"{piece['kind']} {where}{piece['stage']}",
                _steps(piece),
                _batch(piece, ranks),
                _time(seconds),
                _time(total),
                piece["source"],
                *last,
            )
            first, last = ("", ""), []
        table.add_section()
    return table


def _steps(piece: dict[str, Any]) -> str:
    if piece["kind"] != "train":
        return ""
    if piece["to_step"] is None:
        return "–"
    return f"{count(piece['from_step'])} – {count(piece['to_step'])}"


def _batch(piece: dict[str, Any], ranks: int = 1) -> str:
    """`64 = 8 × 4 × 2 (predicted)` with two ranks; what is not known before it runs is `auto`."""
    source = piece["batch_source"]
    if piece["kind"] != "train" or source == "command":
        return ""
    whole, mark = piece["effective_batch"], f" ({source})" if source in _FORETOLD else ""
    if piece["budget"] is not None:
        known = piece["budget"] if piece["budget"] == "auto" else count(piece["budget"])
        return f"{whole}, budget {known}{mark}"
    if piece["micro_batch"] is None:
        return f"{whole}, auto"
    times = f" × {ranks}" if ranks > 1 else ""
    return f"{whole} = {piece['micro_batch']} × {piece['accumulation']}{times}{mark}"


def _time(seconds: float | None) -> str:
    return "–" if seconds is None else format_seconds(seconds)


def _print_commands(plan: dict[str, Any], python: str, runs: str, console: Console) -> None:
    console.print("commands (`tasuki run` makes the folders):")
    for job in plan["jobs"]:
        after = f"  # after {', '.join(job['after'])}" if job["after"] else ""
        words = [python, "-m", "tasuki.supervisor", f"{runs}/.jobs/{job['name']}"]
        console.print(f"  {_plain(shlex.join(words))}{after}", highlight=False, soft_wrap=True)


def _plain(text: str) -> str:
    from rich.markup import escape

    return escape(neutral(text))
