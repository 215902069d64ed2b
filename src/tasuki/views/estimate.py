"""What stages need, for people: a table for a card, or one that compares cards; and the commands.

Fed with the values of `tasuki estimate --json`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tasuki.units import format_bytes, format_seconds, format_step
from tasuki.views.fits import show_fits
from tasuki.views.text import count, neutral, say, warn

_NARROW = 64
_ANY_WIDTH = 1000
_DROP = ("known from", "samples", "step", "room", "has", "batch")
"""What gives way first where a table is wider than the window."""
_LEFT = ("stage", "GPU", "known from")
_MOST_BUCKETS = 12
"""Rows of one stage."""
_Row = dict[str, Any]


def show_estimate(found: dict[str, Any], *, console: Console | None = None) -> None:
    console = console or Console()
    rows = found["stages"]
    if found["compares"]:
        _show_compared(rows, console)
    else:
        for gpu in dict.fromkeys(row["gpu"] for row in rows):
            _show_card([row for row in rows if row["gpu"] == gpu], console)
    show_fits(found["fits"], console)
    for text in dict.fromkeys([*found["notes"], *_notes(rows), *found["warnings"]]):
        warn(console, text)
    if not found["compares"]:
        _print_commands(rows, console)


def _show_card(rows: Sequence[_Row], console: Console) -> None:
    first = rows[0]
    has = "" if first["capacity_bytes"] is None else f" ({format_bytes(first['capacity_bytes'])})"
    say(console, f"on {first['gpu']}{has}", "bold")
    shown = list(_some_buckets(rows))
    if console.width < _NARROW:
        for row in shown:
            _print_short(row, console)
    else:
        console.print(_table(shown, console), highlight=False)
    if len(shown) < len(rows):
        say(console, f"{len(rows) - len(shown)} more buckets: `--json` has all", "dim")
    for line in _explain(rows):
        say(console, line)


def _some_buckets(rows: Sequence[_Row]) -> Iterator[_Row]:
    """Of a stage with very many, those that need most."""
    for _, own in groupby(rows, key=lambda row: (row["experiment"], row["stage"], row["gpu"])):
        buckets = list(own)
        most = sorted(buckets, key=lambda row: -(row["peak_bytes"] or 0))[:_MOST_BUCKETS]
        yield from (row for row in buckets if row in most)


def _table(rows: Sequence[_Row], console: Console) -> Table:
    several = len({row["experiment"] for row in rows}) > 1
    before, lines = None, []
    for row in rows:
        name = f"{row['experiment']}/{row['stage']}" if several else row["stage"]
        is_first = name != before
        lines.append(_cells(row, name if is_first else "", is_first=is_first))
        before = name
    return _fit(lines, [_style(row) for row in rows], console)


def _fit(lines: Sequence[dict[str, Text]], styles: Sequence[str], console: Console) -> Table:
    """Columns are left out, not cut, until the others fit."""
    names = list(lines[0])
    wide = console.options.update(max_width=_ANY_WIDTH)
    for gone in ("", *_DROP):
        names = [name for name in names if name != gone]
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, collapse_padding=True)
        for name in names:
            table.add_column(name, justify="left" if name in _LEFT else "right", no_wrap=True)
        for cells, style in zip(lines, styles, strict=True):
            table.add_row(*(cells[name] for name in names), style=style)
        if table.__rich_measure__(console, wide).maximum <= console.width:
            break
    return table


def _style(row: _Row) -> str:
    return "red" if row["remedies"] else ""


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
    say(console, f"{row['stage']}{size}", style or "bold")
    say(console, f"  batch {_batch(row)}", style)
    say(console, f"  needs {_bytes(row['peak_bytes'])}", style)
    say(console, f"  time {_time(row)}", style)
    say(console, f"  ask for {_asked(row)}", style)


def _explain(rows: Sequence[_Row]) -> Iterator[str]:
    """Where the numbers come from, and what they consist of: of the bucket that needs most."""
    worst = max(rows, key=lambda row: row["peak_bytes"] or 0)
    sources, parts = worst["sources"], worst["breakdown"]
    is_given = "peak" in sources
    if is_given:
        yield f"memory: {_bytes(worst['peak_bytes'])}, {sources['peak']}"
    if parts["device"]:
        told, needs = _parts(parts["device"]), _bytes(sum(parts["device"].values()))
        which = f" of size {count(worst['bucket'])}" if worst["bucket"] is not None else ""
        by_trace = ", as traced," if is_given else ""
        yield f"{worst['stage']}{which}{by_trace} needs {needs}: {told}"
        names = ("tensors", "reserved", "context", "margin")
        told = "; ".join(f"{n} {sources[n]}" for n in names if n in sources)
        yield f"{'traced' if is_given else 'memory'}: {told}"
    if "micro_batch" in sources:
        yield f"batch: {sources['micro_batch']}"
    if "step" in sources:
        yield f"step: {_step_source(rows, worst)}"
    yield f"time: {worst['source']}{_used(rows)}"
    if parts["host"]:
        yield f"host: {_parts(parts['host'])}; {sources['host']}"
    elif worst["host_bytes"] is not None:
        yield f"host: {sources['host']}"


def _step_source(rows: Sequence[_Row], worst: _Row) -> str:
    """Of several cards no single one is named."""
    told: str = worst["sources"]["step"]
    if len({row["gpu"] for row in rows}) == 1:
        return told
    return told.replace(f"roofline of {worst['gpu']} ", "roofline of each card ")


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
    """Of stages that fit: what cannot run is not to be pasted."""
    refused = {row["submit_command"] for row in rows if row["remedies"]}
    commands = dict.fromkeys(row["submit_command"] for row in rows)
    for number, command in enumerate(one for one in commands if one not in refused):
        if not number:
            console.print()
        console.print(Text(f"  {neutral(command)}"), highlight=False, soft_wrap=True)


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
        say(console, f"{experiment}/{stage}{told}", "bold")
        if console.width < _NARROW:
            for row in worst:
                say(console, f"  {row['gpu']}", "red" if row["remedies"] else "bold")
                say(console, f"    batch {_batch(row)}, {_time_of_stage(row)}")
        else:
            console.print(_compared(worst, console), highlight=False)
        say(console, "")
    for line in _explain(rows):
        say(console, line)


def _by_card(rows: Sequence[_Row]) -> list[list[_Row]]:
    return [list(group) for _, group in groupby(rows, key=lambda row: row["gpu"])]


def _compared(rows: Sequence[_Row], console: Console) -> Table:
    lines = []
    for row in rows:
        cells = _cells(row, row["gpu"], is_first=True)
        lines.append(
            {
                "GPU": cells["stage"],
                "has": Text(_bytes(row["capacity_bytes"])),
                **{name: cells[name] for name in ("batch", "needs", "room", "step")},
                "time": Text(_time_of_stage(row)),
                "ask for": cells["ask for"],
            }
        )
    return _fit(lines, [_style(row) for row in rows], console)


def _time_of_stage(row: _Row) -> str:
    return _time({**row, "wall_s": row["stage_wall_s"]})
