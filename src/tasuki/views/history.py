"""Past stages as a table, newest first; and what could not be read."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from rich.console import Console
from rich.markup import escape

from tasuki.units import format_bytes, format_seconds, format_step
from tasuki.views.checkpoint import Column, make_table
from tasuki.views.text import count, line_of, say

_COLUMNS = (
    Column("when"),
    Column("stage"),
    Column("device", drop=1),
    Column("ranks", is_right=True, drop=5),
    Column("samples", is_right=True, drop=3),
    Column("step", is_right=True),
    Column("peak", is_right=True, drop=2),
    Column("wall", is_right=True),
    Column("waited", is_right=True, drop=4),
    Column("attempts", is_right=True, drop=6),
)


def show_history(
    found: dict[str, Any], *, folder: str, now: float, console: Console | None = None
) -> None:
    console = console or Console()
    here = datetime.fromtimestamp(now).astimezone()
    stages = found["stages"]
    if stages:
        head, lines = make_table(_COLUMNS, [_row(stage, here) for stage in stages], console.width)
        console.print(f"[bold]{escape(head)}[/]", highlight=False)
        console.out("\n".join(lines), highlight=False)
    elif found["all"]:
        words = f"none of the {count(found['all'])} past stages in {folder} is meant"
        console.print(escape(words), highlight=False)
    else:
        console.print(f"no past stages in {escape(folder)}", highlight=False)
    for left_out in found["left_out"]:
        number = left_out["lines"]
        words = f"{left_out['file']}: {number} line{'s' if number > 1 else ''} {left_out['what']}"
        say(console, words, label="left out:", label_style="yellow")


def _row(stage: dict[str, Any], now: datetime) -> list[str]:
    preempted = f" ({stage['preemptions']} preempted)" if stage["preemptions"] else ""
    name = f"{stage['run']}/{stage['stage']}" if stage["run"] else "an earlier run"
    return [
        short_time(stage["at"], now=now) if stage["at"] else "–",
        line_of(name),
        line_of(_device(stage)),
        count(stage["ranks"]),
        count(stage["samples"]),
        "–" if stage.get("command") else format_step(stage["step_s"]),
        format_bytes(stage["peak_bytes"]) if stage["peak_bytes"] else "–",
        _seconds(stage["wall_s"]),
        _seconds(stage["queue_s"]),
        f"{count(stage['attempts'])}{preempted}",
    ]


def short_time(at: str, *, now: datetime) -> str:
    """`22:53` of today, `11-17 22:53` of this year, else the day: as clocks went here."""
    then = datetime.fromisoformat(at).astimezone()
    if then.date() == now.date():
        return f"{then:%H:%M}"
    return f"{then:%m-%d %H:%M}" if then.year == now.year else f"{then:%Y-%m-%d}"


def _device(stage: dict[str, Any]) -> str:
    """A processor's model is long, and says little."""
    if stage["device"] == "cpu":
        return "cpu"
    return stage["gpu"] or stage["device_model"] or stage["device"] or "–"


def _seconds(seconds: float | None) -> str:
    return "–" if seconds is None else format_seconds(seconds)
