"""A plan whose jobs have lanes side by side: a table by job and lane, a Gantt, and what to expect.

live.py shows the Gantt and the first lines of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tasuki.units import format_seconds
from tasuki.views.chart import number_of
from tasuki.views.gantt import show_gantt, whole_name
from tasuki.views.pieces import batch_of, steps_of, time_of
from tasuki.views.plan_facts import facts_of, gpus_in_words, pieces_of
from tasuki.views.text import neutral, say

_NARROW = 70
_ANY_WIDTH = 1000
_MOST_PIECES = 200
"""On a terminal; elsewhere all of them are printed."""
_DROP = ("steps", "batch", "known from")
"""What gives way first where the table is wider than the window."""
_RIGHT = ("start", "time")
_Line = tuple[Mapping[str, Any], Mapping[str, Any], Mapping[str, Any]]
"""(job, lane, piece)"""


def show_packed(plan: Mapping[str, Any], console: Console, *, unit: str = "GPU") -> None:
    lines = list(_lines(plan))
    cut = lines[:_MOST_PIECES] if console.is_terminal else lines
    if console.width < _NARROW:
        _print_list(plan, cut, console, unit)
    else:
        console.print(_table(plan, cut, console, unit), highlight=False)
    if len(cut) < len(lines):
        say(console, f"… and {len(lines) - len(cut)} more pieces: `--json` has all", "dim")
    show_gantt(plan, console, unit=unit)
    for what, told in facts_of(plan, unit=unit):
        say(console, f"{what}: {told}")


def _lines(plan: Mapping[str, Any]) -> Iterator[_Line]:
    for job in plan["jobs"]:
        for lane in job["lanes"]:
            yield from ((job, lane, piece) for piece in lane["stages"])


def _table(plan: Mapping[str, Any], lines: list[_Line], console: Console, unit: str) -> Table:
    """Columns are left out, not cut, until the others fit."""
    rows: list[tuple[bool, dict[str, str]]] = []
    last: tuple[str, tuple[int, ...]] = ("", ())
    several = len({piece["experiment"] for piece in pieces_of(plan)}) > 1
    for job, lane, piece in lines:
        here = (job["name"], tuple(lane["gpus"]))
        cells = _cells(job, lane, piece, unit, several=several)
        if here[0] == last[0]:
            cells["job"] = cells["limit"] = ""
        if here == last:
            cells[f"{unit}s"] = ""
        rows.append((here[0] != last[0], cells))
        last = here
    wide = console.options.update(max_width=_ANY_WIDTH)
    names = list(rows[0][1])
    for gone in ("", *_DROP):
        names = [name for name in names if name != gone]
        table = _draw(plan, names, rows)
        if table.__rich_measure__(console, wide).maximum <= console.width:
            break
    return table


def _draw(
    plan: Mapping[str, Any], names: list[str], rows: list[tuple[bool, dict[str, str]]]
) -> Table:
    table = Table(
        box=box.SIMPLE_HEAD, pad_edge=False, title=f"plan {plan['id']}", title_justify="left"
    )
    for name in names:
        table.add_column(name, justify="right" if name in _RIGHT else "left")
    for at, (is_new_job, cells) in enumerate(rows):
        if is_new_job and at:
            table.add_section()
        table.add_row(*(Text(cells[name]) for name in names))
    return table


def _cells(
    job: Mapping[str, Any],
    lane: Mapping[str, Any],
    piece: Mapping[str, Any],
    unit: str,
    *,
    several: bool,
) -> dict[str, str]:
    verb = "" if piece["kind"] == "evaluate" else f"{piece['kind']} "
    return {
        "job": number_of(job),
        "limit": time_of(job["limit_s"]),
        f"{unit}s": gpus_in_words(lane["gpus"]),
        "work": f"{verb}{whole_name(piece, several=several)}",
        "steps": steps_of(piece),
        "batch": batch_of(piece, len(lane["gpus"])),
        "start": _start(piece),
        "time": "unknown" if piece["expected_s"] is None else format_seconds(piece["expected_s"]),
        "known from": neutral(piece["source"]),
    }


def _start(piece: Mapping[str, Any]) -> str:
    if piece["start_s"] is None:
        return "unknown"
    return format_seconds(piece["start_s"]) if piece["start_s"] else "0"


def _print_list(plan: Mapping[str, Any], lines: list[_Line], console: Console, unit: str) -> None:
    """For a narrow window."""
    several = len({piece["experiment"] for piece in pieces_of(plan)}) > 1
    last: tuple[str | None, str | None] = (None, None)
    for job, lane, piece in lines:
        cells = _cells(job, lane, piece, unit, several=several)
        if cells["job"] != last[0]:
            say(console, f"job {cells['job']}, limit {cells['limit']}")
        if (cells["job"], cells[f"{unit}s"]) != last:
            say(console, f"  {unit} {cells[f'{unit}s']}")
        say(console, f"    {cells['work']}, {cells['time']} from {cells['start']} on")
        last = (cells["job"], cells[f"{unit}s"])
