"""Why a run is where it is: a sentence for each attempt, and where its time went."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.text import Text

from tasuki.runs.ledger import PARTS
from tasuki.units import format_seconds
from tasuki.views.blocks import span
from tasuki.views.text import (
    NOT_RUNNING,
    STATE_COLOURS,
    encodable,
    goodput_of,
    local_time,
    neutral,
    warn,
    was_queued,
    wrap,
)

_PART_COLOURS = {"step": "green", "recomputed": "red", "queue": "yellow"}
_WIDEST = 100
"""Columns, where nobody says how many there are."""


def show_why(why: dict[str, Any], console: Console | None = None) -> None:
    console = console or Console()
    with encodable(console):
        _show_head(why, console)
        for attempt in why["attempts"]:
            _show_attempt(attempt, console)
        if not why["attempts"]:
            _say(console, "  no attempt yet")
        if len(why["stages"]) > 1 and any(one["saved_step"] for one in why["attempts"]):
            _say(console, "  (steps are those of the run, counted over all stages)")
        own = {} if was_queued(why["attempts"]) else {"queue": NOT_RUNNING}
        _show_ledger(why["ledger"], own, console)
        for note in why["notes"]:
            warn(console, _line(note))


def _show_head(why: dict[str, Any], console: Console) -> None:
    state = why["state"] or "unknown"
    num = sum(not attempt["is_word"] for attempt in why["attempts"])
    head = Text()
    head.append(_line(why["experiment"]), style="bold")
    head.append(": ")
    head.append(state, style=STATE_COLOURS.get(state, ""))
    head.append(f", {num} attempt{'s' if num != 1 else ''}")
    console.print(head, highlight=False, soft_wrap=True)
    if why["reason"]:
        _say(console, f"  {_line(why['reason'])}")
    if why["hint"]:
        _say(console, f"  hint: {_line(why['hint'])}", label=len("  hint:"))


def _show_attempt(attempt: dict[str, Any], console: Console) -> None:
    """The sentence hangs beside the number and the time at which the attempt began."""
    began = attempt["began_at"]
    when = "–" if began is None else local_time(began, "%m-%d %H:%M", unknown="–")
    where = f" [{_line(attempt['scheduler_job'])}]" if attempt["scheduler_job"] else ""
    label = f"{attempt['attempt']:>4}  {when}{where}  "
    if _width(console) < 60:
        label = f"{attempt['attempt']:>4}  "
    width = max(10, _width(console) - len(label)) if console.is_terminal else None
    words = wrap(_line(attempt["sentence"]), width)
    first, *rest = words.split("\n")
    _say(console, "\n".join([label + first, *(" " * len(label) + line for line in rest)]))


def _show_ledger(ledger: dict[str, Any], names: dict[str, str], console: Console) -> None:
    """A waterfall: each part begins where the one before it ended."""
    wall, parts = ledger["wall_s"], ledger["parts"]
    if not wall or wall <= 0:
        return
    told = ", ".join(filter(None, [f"where {format_seconds(wall)} went", goodput_of(ledger)]))
    _say(console, f"\n{told}")
    reached = 0.0
    shown = [part for part in PARTS if abs(parts.get(part, 0.0)) >= 0.0005]
    labels = {part: names.get(part, part.replace("_", " ")) for part in shown}
    widest = max([10, *map(len, labels.values())])
    room = max(5, _width(console) - widest - 18)
    for part, label in labels.items():
        seconds = parts[part]
        end, is_ascii = reached + max(0.0, seconds), console.options.ascii_only
        drawn = span(reached / wall, end / wall, room, is_ascii=is_ascii)
        line = Text(f"  {label:<{widest}} {format_seconds(seconds):>7}")
        line.append(f" {seconds / wall:>4.0%} ")
        line.append(drawn, style=_PART_COLOURS.get(part, "blue"))
        line.rstrip()
        console.print(line, highlight=False, soft_wrap=True)
        reached = end


def _say(console: Console, text: str, *, label: int = 0) -> None:
    width = _width(console) if console.is_terminal else None
    words = Text(wrap(text, width))
    words.stylize("cyan", 0, label)
    console.print(words, highlight=False, soft_wrap=True)


def _width(console: Console) -> int:
    return min(console.width, _WIDEST)


def _line(text: object) -> str:
    """Harmless, and on one line."""
    return " ".join(neutral(str(text)).split())
