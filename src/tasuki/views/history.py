"""Past stages as a table, newest first; and what could not be read."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.markup import escape

from tasuki.units import format_bytes, format_seconds, format_step
from tasuki.views.checkpoint import Column, make_table
from tasuki.views.text import count, neutral

_COLUMNS = (
    Column("when", least=10),
    Column("stage", least=12),
    Column("gpu", least=6, drop=2),
    Column("ranks", is_right=True, drop=5),
    Column("samples", is_right=True, drop=3),
    Column("step", is_right=True),
    Column("peak", is_right=True, drop=1),
    Column("wall", is_right=True),
    Column("waited", is_right=True, drop=4),
    Column("attempts", is_right=True, drop=6),
)


def show_history(found: dict[str, Any], *, folder: str, console: Console | None = None) -> None:
    console = console or Console()
    stages = found["stages"]
    if stages:
        head, lines = make_table(_COLUMNS, [_row(stage) for stage in stages], console.width)
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
        console.print(f"[yellow]left out:[/] {escape(neutral(words))}", highlight=False)


def _row(stage: dict[str, Any]) -> list[str]:
    preempted = f" ({stage['preemptions']} preempted)" if stage["preemptions"] else ""
    name = f"{stage['run']}/{stage['stage']}" if stage["run"] else "an earlier run"
    return [
        stage["at"] or "–",
        name,
        stage["gpu"] or stage["device_model"] or stage["device"] or "–",
        count(stage["ranks"]),
        count(stage["samples"]),
        format_step(stage["step_s"]),
        format_bytes(stage["peak_bytes"]) if stage["peak_bytes"] else "–",
        _seconds(stage["wall_s"]),
        _seconds(stage["queue_s"]),
        f"{count(stage['attempts'])}{preempted}",
    ]


def _seconds(seconds: float | None) -> str:
    return "–" if seconds is None else format_seconds(seconds)
