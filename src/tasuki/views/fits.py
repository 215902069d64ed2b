"""What was chosen at the same effective batch, and what lost: a short table for each stage.

Below a plan (plan.py) and an estimate (estimate.py), from their `fits`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tasuki.units import format_bytes, format_seconds, format_step
from tasuki.views.text import count, neutral, say

_NARROW = 90
_MOST = 5
"""Of those that lost; JSON has all."""
_Row = Mapping[str, Any]


def show_fits(fits: Mapping[str, Mapping[str, Any]], console: Console) -> None:
    alone: dict[str, list[str]] = {}
    """What there was to say of stages without a choice → those stages."""
    for name, fit in fits.items():
        chosen = fit["chosen"]
        if not fit["alternatives"]:
            if fit["auto"]:
                words = f"{_way(chosen)}: {chosen['reason']} ({fit['source']})"
                alone.setdefault(words, []).append(name)
            continue
        on = "" if fit["gpu"] is None else f" on {fit['gpu']}"
        say(console, f"{name}{on}, {fit['source']}", "bold")
        shown = list(_some(fit))
        if console.width < _NARROW:
            _print_lines(chosen, shown, console)
        else:
            console.print(_table(chosen, shown), highlight=False)
        if len(shown) < len(fit["alternatives"]):
            more = len(fit["alternatives"]) - len(shown)
            say(console, f"{more} more that lost: `--json` has all", "dim")
        if fit["gain"] is not None:
            say(console, f"{fit['gain']['words']} ({fit['source']})")
    for words, names in alone.items():
        say(console, f"{', '.join(names)}: {words}")


def _some(fit: Mapping[str, Any]) -> Iterator[_Row]:
    """Of each other way to recompute and number of GPUs the fastest, and the neighbours of what
    was chosen."""
    chosen = fit["chosen"]
    best: dict[object, _Row] = {}
    for row in sorted(fit["alternatives"], key=lambda row: _order(row, chosen)):
        best.setdefault(_kind(row, chosen), row)
    yield from list(best.values())[:_MOST]


def _order(row: _Row, chosen: _Row) -> tuple[bool, bool, float]:
    is_other = _group(row) != _group(chosen)
    near = abs((row["accumulation"] or 0) - (chosen["accumulation"] or 0))
    return is_other, not row["fits"], (row["step_s"] or 0.0) if is_other else near


def _kind(row: _Row, chosen: _Row) -> object:
    if _group(row) != _group(chosen):
        return _group(row)
    return (row["accumulation"] or 0) > (chosen["accumulation"] or 0)


def _group(row: _Row) -> tuple[str, int]:
    return str(row["gradient_checkpointing"]), row["gpus"]


def _table(chosen: _Row, lost: list[_Row]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, collapse_padding=True)
    for name in ("", "batch", "GPUs", "checkpointing", "needs", "step", "time"):
        table.add_column(name, justify="left" if name in ("", "batch") else "right", no_wrap=True)
    table.add_column("why")
    for row in (chosen, *lost):
        is_chosen = row is chosen
        cells = ("→" if is_chosen else "", _batch(row), count(row["gpus"]), _policy(row))
        values = (_needs(row), _step(row), _time(row), row["reason"])
        style = "bold" if is_chosen else "" if row["fits"] else "dim"
        table.add_row(*(Text(neutral(str(text))) for text in (*cells, *values)), style=style)
    return table


def _print_lines(chosen: _Row, lost: list[_Row], console: Console) -> None:
    for row in (chosen, *lost):
        mark = "→ " if row is chosen else "  "
        say(console, f"{mark}{_way(row)}, {_needs(row)}, {_step(row)} a step", "")
        say(console, f"    {row['reason']}", "dim")


def _way(row: _Row) -> str:
    told = [] if row["micro_batch"] is None and row["budget"] is None else [_batch(row)]
    told.append("no checkpointing" if row["gradient_checkpointing"] is False else "checkpointing")
    if row["gpus"] is not None:
        told.append(f"{row['gpus']} GPU{'' if row['gpus'] == 1 else 's'}")
    return ", ".join(told)


def _batch(row: _Row) -> str:
    if row["budget"] is not None:
        return f"budget {count(row['budget'])}"
    if row["micro_batch"] is None:
        return "–"
    return f"{row['micro_batch']} × {row['accumulation']}"


def _policy(row: _Row) -> str:
    policy = row["gradient_checkpointing"]
    if isinstance(policy, list):
        return ", ".join(policy)
    return {False: "no", True: "yes"}.get(policy, f"each {policy}.")


def _needs(row: _Row) -> str:
    return "–" if row["peak_bytes"] is None else format_bytes(row["peak_bytes"])


def _step(row: _Row) -> str:
    return "–" if row["step_s"] is None else format_step(row["step_s"])


def _time(row: _Row) -> str:
    return "–" if row["wall_s"] is None else format_seconds(row["wall_s"])
