"""What stages need, for people: a table for a card, or one that compares cards; and the commands.

Fed with the values of `tasuki estimate --json`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from tasuki.units import format_bytes, format_seconds, format_step
from tasuki.views.text import count, neutral

_NARROW = 64
_ROOMY = 104
_MOST_BUCKETS = 12
"""Rows of one stage."""
_Row = dict[str, Any]


def show_estimate(found: dict[str, Any], *, console: Console | None = None) -> None:
    console = console or Console()
    rows = found["stages"]
    if found["compares"]:
        _show_compared(rows, console)
    else:
        for _, own in groupby(rows, key=lambda row: row["gpu"]):
            _show_card(list(own), console)
    for text in dict.fromkeys([*found["notes"], *_notes(rows), *found["warnings"]]):
        console.print(f"[yellow]warning:[/] {escape(neutral(text))}", highlight=False)


def _show_card(rows: Sequence[_Row], console: Console) -> None:
    first = rows[0]
    has = "" if first["capacity_bytes"] is None else f" ({format_bytes(first['capacity_bytes'])})"
    _say(console, f"on {first['gpu']}{has}", "bold")
    shown = list(_some_buckets(rows))
    if console.width < _NARROW:
        for row in shown:
            _print_short(row, console)
    else:
        console.print(_table(shown, is_roomy=console.width >= _ROOMY), highlight=False)
    if len(shown) < len(rows):
        _say(console, f"{len(rows) - len(shown)} more buckets: `--json` has all", "dim")
    for line in _explain(rows):
        _say(console, line)
    _print_commands(rows, console)


def _some_buckets(rows: Sequence[_Row]) -> Iterator[_Row]:
    """Of a stage with very many, those that need most."""
    for _, own in groupby(rows, key=lambda row: (row["experiment"], row["stage"], row["gpu"])):
        buckets = list(own)
        most = sorted(buckets, key=lambda row: -(row["peak_bytes"] or 0))[:_MOST_BUCKETS]
        yield from (row for row in buckets if row in most)


def _table(rows: Sequence[_Row], *, is_roomy: bool) -> Table:
    names = ["stage", "size>", "batch>", "needs>", "room>", "step>", "time>", "ask for>"]
    if is_roomy:
        names = [*names[:2], "samples>", *names[2:], "known from"]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, collapse_padding=True)
    for name in names:
        justify = "right" if name.endswith(">") else "left"
        table.add_column(name.removesuffix(">"), justify=justify, no_wrap=True)  # type: ignore[arg-type]
    several = len({row["experiment"] for row in rows}) > 1
    before = None
    for row in rows:
        name = f"{row['experiment']}/{row['stage']}" if several else row["stage"]
        is_first = name != before
        cells = _cells(row, name if is_first else "", is_first=is_first)
        chosen = [cell for key, cell in cells.items() if is_roomy or key not in _ONLY_ROOMY]
        table.add_row(*chosen, style="red" if row["remedies"] else "")
        before = name
    return table


_ONLY_ROOMY = ("samples", "known from")


def _cells(row: _Row, name: str, *, is_first: bool) -> dict[str, Text]:
    cells = {
        "stage": neutral(name),
        "size": count(row["bucket"]),
        "samples": count(row["samples"]),
        "batch": _batch(row),
        "needs": _bytes(row["peak_bytes"]),
        "room": _bytes(row["headroom_bytes"]),
        "step": "–" if row["step_s"] is None else format_step(row["step_s"]),
        "time": _time(row),
        "ask for": _asked(row) if is_first else "",
        "known from": row["source"] if is_first else "",
    }
    return {key: Text(text) for key, text in cells.items()}


def _batch(row: _Row) -> str:
    """`4 × 2 of 96`: a micro-batch, how many of them make a step, and the largest that fits."""
    if row["budget"] is not None:
        most = "" if row["cost_budget"] is None else f" of {_cost(row['cost_budget'])}"
        return f"budget {count(row['budget'])}{most}"
    if row["micro_batch"] is None:
        return "–"
    times = f" × {row['accumulation']}" if (row["accumulation"] or 1) > 1 else ""
    most = f" of {_most(row['max_micro_batch'])}" if row["max_micro_batch"] is not None else ""
    return f"{row['micro_batch']}{times}{most}"


def _most(value: int) -> str:
    return count(value) if value < 1_000_000 else "1M+"


def _cost(value: int) -> str:
    """A table has little room."""
    return count(value) if value < 10_000_000 else f"{value / 1e6:,.1f}M"


def _bytes(value: int | None) -> str:
    if value is None:
        return "–"
    return f"-{format_bytes(-value)}" if value < 0 else format_bytes(value)


def _time(row: _Row) -> str:
    if row["wall_s"] is None:
        return "–"
    bar = f" ±{row['error']:.0%}" if row["error"] is not None else ""
    return f"{format_seconds(row['wall_s'])}{bar}"


def _asked(row: _Row) -> str:
    limit = "–" if row["limit_s"] is None else format_seconds(row["limit_s"])
    jobs = f"{row['jobs']} × " if (row["jobs"] or 1) > 1 else ""
    memory = "" if row["host_bytes"] is None else f", {_gib(row['host_bytes'])}"
    return f"{jobs}{limit}{memory}"


def _gib(value: int) -> str:
    """As it is asked for: `40G`."""
    return f"{-(-value // (1 << 30))}G"


def _print_short(row: _Row, console: Console) -> None:
    size = f" {count(row['bucket'])}" if row["bucket"] is not None else ""
    style = "red" if row["remedies"] else ""
    _say(console, f"{row['stage']}{size}", style or "bold")
    _say(console, f"  batch {_batch(row)}", style)
    _say(console, f"  needs {_bytes(row['peak_bytes'])}", style)
    _say(console, f"  time {_time(row)}", style)
    _say(console, f"  ask for {_asked(row)}", style)


def _explain(rows: Sequence[_Row]) -> Iterator[str]:
    """Where the numbers come from, and what they consist of: of the bucket that needs most."""
    worst = max(rows, key=lambda row: row["peak_bytes"] or 0)
    sources, parts = worst["sources"], worst["breakdown"]
    if parts["device"]:
        told = _parts(parts["device"])
        which = f" of size {count(worst['bucket'])}" if worst["bucket"] is not None else ""
        yield f"{worst['stage']}{which} needs {_bytes(worst['peak_bytes'])}: {told}"
        names = ("tensors", "reserved", "context", "margin")
        yield "memory: " + "; ".join(f"{n} {sources[n]}" for n in names if n in sources)
    elif "peak" in sources:
        yield f"memory: {sources['peak']}"
    if "micro_batch" in sources:
        yield f"batch: {sources['micro_batch']}"
    if "step" in sources:
        yield f"step: {sources['step']}"
    yield f"time: {worst['source']}{_used(rows)}"
    if parts["host"]:
        yield f"host: {_parts(parts['host'])}; {sources['host']}"
    elif worst["host_bytes"] is not None:
        yield f"host: {sources['host']}"


def _parts(parts: dict[str, int]) -> str:
    return ", ".join(f"{name} {format_bytes(size)}" for name, size in parts.items())


def _used(rows: Sequence[_Row]) -> str:
    used = dict.fromkeys(name for row in rows for name in row["used"])
    return f", learnt from {', '.join(used)}" if used else ""


def _notes(rows: Sequence[_Row]) -> Iterator[str]:
    """Once each, with the stages that they are about."""
    about: dict[str, list[str]] = {}
    for row in rows:
        on = f" on {row['gpu']}" if row["remedies"] else ""
        texts = [*row["notes"], *(["; ".join(row["remedies"])] if row["remedies"] else [])]
        for text in texts:
            names = about.setdefault(text, [])
            if f"{row['stage']}{on}" not in names:
                names.append(f"{row['stage']}{on}")
    for text, names in about.items():
        yield f"{', '.join(names)}: {text}"


def _print_commands(rows: Sequence[_Row], console: Console) -> None:
    _say(console, "")
    for command in dict.fromkeys(row["submit_command"] for row in rows):
        _say(console, f"  {command}")


# -- several cards ---------------------------------------------------------------------------------


def _show_compared(rows: Sequence[_Row], console: Console) -> None:
    """For each stage a line per card, of the bucket that needs most."""
    key = ("experiment", "stage")
    for (experiment, stage), own in groupby(rows, key=lambda row: tuple(row[k] for k in key)):
        worst = [
            max(group, key=lambda row: row["peak_bytes"] or 0) for group in _by_card(list(own))
        ]
        samples = worst[0]["samples"]
        told = "" if samples is None else f", {count(samples)} samples in its largest bucket"
        _say(console, f"{experiment}/{stage}{told}", "bold")
        if console.width < _NARROW:
            for row in worst:
                _say(console, f"  {row['gpu']}", "red" if row["remedies"] else "bold")
                _say(console, f"    batch {_batch(row)}, {_time_of_stage(row)}")
        else:
            console.print(_compared(worst), highlight=False)
        _say(console, "")
    for line in _explain(rows):
        _say(console, line)


def _by_card(rows: Sequence[_Row]) -> list[list[_Row]]:
    return [list(group) for _, group in groupby(rows, key=lambda row: row["gpu"])]


def _compared(rows: Sequence[_Row]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, collapse_padding=True)
    for name in ("GPU", "has>", "batch>", "needs>", "room>", "step>", "time>", "ask for>"):
        justify = "right" if name.endswith(">") else "left"
        table.add_column(name.removesuffix(">"), justify=justify, no_wrap=True)  # type: ignore[arg-type]
    for row in rows:
        cells = _cells(row, row["gpu"], is_first=True)
        names = ("batch", "needs", "room", "step")
        table.add_row(
            cells["stage"],
            _bytes(row["capacity_bytes"]),
            *(cells[name] for name in names),
            _time_of_stage(row),
            cells["ask for"],
            style="red" if row["remedies"] else "",
        )
    return table


def _time_of_stage(row: _Row) -> str:
    return _time({**row, "wall_s": row["stage_wall_s"]})


def _say(console: Console, text: str, style: str = "") -> None:
    console.print(Text(neutral(text), style=style), highlight=False, soft_wrap=True)
