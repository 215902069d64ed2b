"""What an audit found: a line per stage, where the first difference lies, and the verdict."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.markup import escape

from tasuki.views.text import count, say

_COLOURS = {"proven": "green", "not proven": "red", "not known": "yellow"}
_NOTES = (
    ("rolled_back", "rolled back, no later attempt went on from it:"),
    ("late", "committed late by an attempt that had lost its claim, and never used:"),
    ("unrecorded", "no record of its own (later ones cover it):"),
    ("unreadable", "cannot be read:"),
)


def show_audit(found: dict[str, Any], *, console: Console | None = None) -> None:
    console = console or Console()
    for stage in found["stages"]:
        colour = _COLOURS.get(stage["verdict"], "default")
        told = f"{escape(stage['stage'])}: [{colour}]{stage['verdict']}[/]{_usage(stage)}"
        console.print(told, highlight=False)
        for line in _notes(stage):
            say(console, f"  {line}")
    console.print(_verdict(found), highlight=False)


def _usage(stage: dict[str, Any]) -> str:
    """Epochs and samples, as far as they are known."""
    if stage.get("samples") is None:
        return ""
    whole, each = stage["epochs_complete"], stage["samples_per_epoch"]
    part = stage["samples"] - whole * each
    of_next = f" and {count(part)} of the next" if part else ""
    return (
        f": {_plural(whole, 'epoch')} of {count(each)} samples{of_next}, "
        f"{count(stage['repeated'])} repeated, {count(stage['skipped'])} skipped; "
        f"{count(stage['matching'])} of {_plural(stage['commits'], 'commit')} match, "
        f"{_plural(stage['attempts'], 'attempt')}"
    )


def _notes(stage: dict[str, Any]) -> list[str]:
    lines = [stage["reason"]] if stage["reason"] else []
    if stage.get("redone_steps"):
        redone = stage["redone_steps"]
        were = f"{_plural(redone, 'step')} {'was' if redone == 1 else 'were'}"
        lines.append(f"{were} done again from the last commit on: allowed")
    if stage.get("left_out_steps"):
        left_out = count(stage["left_out_steps"])
        lines.append(f"{left_out} steps had no finite gradient: their samples count as used")
    lines += [f"{words} {_some(stage[key])}" for key, words in _NOTES if stage.get(key)]
    return lines


def _plural(number: int, word: str) -> str:
    return f"{count(number)} {word}" + ("" if number == 1 else "s")


def _some(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


def _verdict(found: dict[str, Any]) -> str:
    name = escape(found["experiment"])
    if found["is_proven"]:
        return f"[green]proven[/]: {name} used every sample exactly once per epoch"
    if all(stage["verdict"] == "not begun" for stage in found["stages"]):
        return f"[red]not proven[/]: no step of {name} is committed yet"
    return f"[red]not proven[/] of all that {name} was trained with"
