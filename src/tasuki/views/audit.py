"""What an audit found: a line per stage, the verdict, and where the first difference lies."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tasuki.views.text import count, neutral

_COLOURS = {"proven": "green", "not proven": "red", "not known": "yellow"}
_COLUMNS = (
    "stage",
    "epochs",
    "samples each",
    "used",
    "repeated",
    "skipped",
    "commits",
    "attempts",
    "verdict",
)


def show_audit(found: dict[str, Any], *, console: Console | None = None) -> None:
    console = console or Console()
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in _COLUMNS:
        is_word = name in ("stage", "verdict")
        table.add_column(name, justify="left" if is_word else "right", no_wrap=True)
    for stage in found["stages"]:
        table.add_row(*_row(stage))
    console.print(table)
    for stage in found["stages"]:
        for line in _notes(stage):
            told = f"{stage['stage']}: {neutral(line)}"
            console.print(escape(told), highlight=False)
    console.print(_verdict(found), highlight=False)


def _row(stage: dict[str, Any]) -> list[str]:
    verdict = stage["verdict"]
    colour = _COLOURS.get(verdict, "default")
    checked, commits = stage.get("checked"), stage.get("commits")
    return [
        escape(stage["stage"]),
        _epochs(stage),
        count(stage.get("samples_per_epoch")),
        count(stage.get("samples")),
        count(stage.get("repeated")),
        count(stage.get("skipped")),
        "–" if commits is None else f"{count(checked)}/{count(commits)}",
        count(stage.get("attempts")),
        f"[{colour}]{verdict}[/]",
    ]


def _epochs(stage: dict[str, Any]) -> str:
    """Whole ones, and a plus for a part of one more."""
    whole = stage.get("epochs_complete")
    if whole is None:
        return "–"
    samples = stage["samples"]
    is_part = samples is not None and samples > whole * stage["samples_per_epoch"]
    return f"{whole:,}+" if is_part else f"{whole:,}"


def _notes(stage: dict[str, Any]) -> list[str]:
    lines = []
    if stage["reason"]:
        lines.append(f"{stage['verdict']}: {stage['reason']}")
    if stage.get("redone_steps"):
        redone = count(stage["redone_steps"])
        lines.append(f"{redone} steps were done again after kills, from the last commit (allowed)")
    for key, words in (
        ("rolled_back", "rolled back: no later attempt went on from"),
        ("late", "committed late by an attempt that had lost its claim, and never used:"),
        ("unrecorded", "no record of its own, but of later ones where they are proven:"),
        ("unreadable", "cannot be read:"),
    ):
        if stage.get(key):
            lines.append(f"{words} {_some(stage[key])}")
    return lines


def _some(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


def _verdict(found: dict[str, Any]) -> str:
    name = escape(found["experiment"])
    if found["is_proven"]:
        return f"{name}: [green]proven[/]: every sample was used exactly once per epoch"
    if all(stage["verdict"] == "not begun" for stage in found["stages"]):
        return f"{name}: [red]not proven[/]: no step is committed yet"
    return f"{name}: [red]not proven[/]"
