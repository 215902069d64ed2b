"""A plan as a table: jobs, what is in them, how long, how that is known, and the commands.

One of lanes side by side is shown by packed.py.
"""

from __future__ import annotations

import shlex
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from tasuki.views.chart import is_packed, number_of
from tasuki.views.fits import show_fits
from tasuki.views.packed import show_packed
from tasuki.views.pieces import batch_of, steps_of, time_of
from tasuki.views.plan_facts import deadline_in_words, measured_in_words, sources_in_words
from tasuki.views.text import encodable, money, neutral, say, warn

_NARROW = 70
_ROOMY = 100
_ANY_WIDTH = 1000
_DROP = ("known from", "total", "batch")
"""What gives way first where the table is too wide."""
_RIGHT = ("time", "total", "cost")


def show_plan(
    plan: dict[str, Any],
    *,
    python: str,
    runs: str,
    console: Console | None = None,
    commands: bool = True,
    unit: str = "GPU",
) -> None:
    """`unit` is what `gpus` counts: GPUs, or slots of the CPU."""
    console = console or Console()
    with encodable(console):
        if not plan["jobs"]:
            console.print("nothing left to do")
        else:
            if is_packed(plan):
                show_packed(plan, console, unit=unit)
            else:
                _show_chain(plan, console)
            if commands:
                _print_commands(plan, python, runs, console)
        show_fits(plan["fits"], console)
        for warning in plan["warnings"]:
            warn(console, warning)


def _show_chain(plan: dict[str, Any], console: Console) -> None:
    if console.width < _NARROW:
        _print_list(plan, console)
    else:
        table, gone = _fitting_table(plan, console)
        console.print(table)
        if "known from" in gone:
            say(console, f"times known from: {sources_in_words(plan)}")
    if plan["cost"] is not None:
        console.print(f"cost {money(plan['cost'])}", highlight=False)
    if plan["deadline_s"] is not None:
        say(console, f"deadline {deadline_in_words(plan)}")
    if words := measured_in_words(plan):
        say(console, f"steps were {words}")


def _print_list(plan: dict[str, Any], console: Console) -> None:
    """For a narrow window."""
    for job in plan["jobs"]:
        limit = f"  limit {time_of(job['limit_s'])}" if job["limit_s"] is not None else ""
        console.print(f"job {number_of(job)}{limit}", highlight=False)
        for piece in [p for lane in job["lanes"] for p in lane["stages"]]:
            words = f"  {piece['kind']} {piece['stage']}  {time_of(piece['expected_s'])}"
            console.print(words, highlight=False)


def _has_costs(plan: dict[str, Any]) -> bool:
    return any(job["cost"] is not None for job in plan["jobs"])


def _fitting_table(plan: dict[str, Any], console: Console) -> tuple[Table, set[str]]:
    """Columns are left out, not cut, until the others fit; and which those are."""
    has_costs = _has_costs(plan) and console.width >= _ROOMY
    wide = console.options.update(max_width=_ANY_WIDTH)
    gone = _empty_columns(plan)
    table = _table(plan, has_costs=has_costs, gone=gone)
    for name in _DROP:
        if table.__rich_measure__(console, wide).maximum <= console.width:
            break
        gone.add(name)
        table = _table(plan, has_costs=has_costs, gone=gone)
    return table, gone


def _empty_columns(plan: dict[str, Any]) -> set[str]:
    """Of which there is nothing to tell in any row: jobs without a limit, commands alone."""
    pieces = [p for job in plan["jobs"] for lane in job["lanes"] for p in lane["stages"]]
    told = {
        "limit": any(job["limit_s"] is not None for job in plan["jobs"]),
        "batch": any(batch_of(piece) for piece in pieces),
    }
    return {name for name, is_told in told.items() if not is_told}


def _table(plan: dict[str, Any], *, has_costs: bool, gone: set[str]) -> Table:
    pieces = [p for job in plan["jobs"] for lane in job["lanes"] for p in lane["stages"]]
    several = len({piece["experiment"] for piece in pieces}) > 1
    table = Table(
        box=box.SIMPLE_HEAD, pad_edge=False, title=f"plan {plan['id']}", title_justify="left"
    )
    names = ["job", "limit", "work", "steps", "batch", "time", "total", "known from"]
    names += ["cost"] if has_costs else []
    shown = [name for name in names if name not in gone]
    for name in shown:
        table.add_column(name, justify="right" if name in _RIGHT else "left")
    total: float | None = 0.0
    for job in plan["jobs"]:
        first = (number_of(job), time_of(job["limit_s"]))
        last = [money(job["cost"])] if has_costs else []
        lanes = [(len(lane["gpus"]), piece) for lane in job["lanes"] for piece in lane["stages"]]
        for ranks, piece in lanes:
            seconds = piece["expected_s"]
            total = None if total is None or seconds is None else total + seconds
            where = f"{piece['experiment']}/" if several else ""
            row = (
                *first,
                f"{piece['kind']} {where}{piece['stage']}",
                steps_of(piece),
                batch_of(piece, ranks),
                time_of(seconds),
                time_of(total),
                piece["source"],
                *last,
            )
            cells = dict(zip(names, row, strict=False))
            table.add_row(*(cells.get(name, "") for name in shown))
            first, last = ("", ""), []
        table.add_section()
    return table


def _print_commands(plan: dict[str, Any], python: str, runs: str, console: Console) -> None:
    console.print("commands (`tasuki run` makes the folders):")
    for job in plan["jobs"]:
        after = f"  # after {', '.join(job['after'])}" if job["after"] else ""
        words = [python, "-m", "tasuki.jobs", f"{runs}/.jobs/{job['name']}"]
        console.print(f"  {_plain(shlex.join(words))}{after}", highlight=False, soft_wrap=True)


def _plain(text: str) -> str:
    from rich.markup import escape

    return escape(neutral(text))
