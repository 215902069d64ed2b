"""What data hold, for people: counts, a histogram of sizes, padding, and stages to begin with.

Fed with the values of `tasuki inspect --json`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tasuki.units import format_bytes
from tasuki.views.data import show_checked
from tasuki.views.text import count, neutral, warn

_MOST_FILES = 12
_MOST_COLUMNS = 16
_MOST_STAGES = 24
_MOST_LARGEST = 5
_WIDEST_BAR = 48
_NARROWEST_BAR = 6
_NARROW = 50
_GAP = 3
"""Between the columns of a table."""
_EIGHTHS = " ▏▎▍▌▋▊▉"


def show_inspection(found: dict[str, Any], *, console: Console | None = None) -> None:
    console = console or Console()
    for number, part in enumerate(found.get("parts", [found])):
        if number:
            console.print()
        for section in _sections(part, console.width):
            console.print(section, highlight=False)
            console.print()
        _print_proposal(part, console)
    for warning in found.get("warnings", []):
        warn(console, warning)
    if "check" in found:
        console.print("\n[bold]checked:[/]\n", highlight=False)
        show_checked(found["check"], console=console)


def _sections(part: dict[str, Any], width: int) -> Iterator[Table | str]:
    """From the whole to its parts, with an empty line after each."""
    yield f"[bold]{_plain(_headline(part))}[/]\n{_plain(' · '.join(_totals(part)))}"
    if part["notes"]:
        yield "\n".join(f"[yellow]warning:[/] {_plain(note)}" for note in part["notes"])
    if len(part["files"]) > 1:
        yield _files(part["files"])
    if part["columns"]:
        yield _columns(part["columns"], width)
    if part["histogram"]:
        yield _sizes(part, width)
        if part["spread"]["sizes"] > 1:
            yield _plain("\n".join(_spread(part)))
            yield _padding(part, width)
        yield _largest(part)
    if "stages" in part:
        yield _stages(part["stages"])


def _headline(part: dict[str, Any]) -> str:
    if "recipe" not in part:
        return str(part["source"])
    source = part["source"] or "no `data`"
    return f"{source} ({part['split']}), opened by {part['recipe']}"


def _totals(part: dict[str, Any]) -> Iterator[str]:
    yield "1 sample" if part["samples"] == 1 else f"{count(part['samples'])} samples"
    size = f"{format_bytes(part['bytes'])} in memory"
    if part["measured"] is not None:
        size = f"about {size} (measured on {count(part['measured'])} samples)"
    yield size
    if part["disk_bytes"] is not None:
        yield f"{format_bytes(part['disk_bytes'])} on disk"
    spread = part["spread"]
    if spread is None:
        yield "sizes unknown: one bucket"
    elif spread["sizes"] == 1:
        yield f"all of size {count(spread['largest'])}"
    else:
        low, high = count(spread["smallest"]), count(spread["largest"])
        yield f"{count(spread['sizes'])} sizes, {low} to {high}"


def _files(files: Sequence[dict[str, Any]]) -> Table:
    table = _table("file", "samples>", "bytes>", "on disk>")
    for file in files[:_MOST_FILES]:
        num_bytes = "–" if file["bytes"] is None else format_bytes(file["bytes"])
        disk = format_bytes(file["disk_bytes"])
        table.add_row(_plain(file["file"]), count(file["samples"]), num_bytes, disk)
    _add_rest(table, files, _MOST_FILES)
    return table


def _columns(columns: Sequence[dict[str, Any]], width: int) -> Table:
    has_bytes = width >= _NARROW and any(column["bytes"] is not None for column in columns)
    table = _table("data set", "type", "of a sample", *(["bytes>"] if has_bytes else []))
    for column in columns[:_MOST_COLUMNS]:
        row = [_plain(column["name"]), _plain(column["type"]), _shape(column["shape"])]
        if has_bytes:
            row.append("–" if column["bytes"] is None else format_bytes(column["bytes"]))
        table.add_row(*row)
    _add_rest(table, columns, _MOST_COLUMNS)
    return table


def _shape(shape: Sequence[int | None] | None) -> str:
    if shape is None:
        return "its own shape"
    if not shape:
        return "one number"
    if list(shape) == [None]:
        return "any length"
    return " × ".join("any" if length is None else str(length) for length in shape)


def _sizes(part: dict[str, Any], width: int) -> Table:
    """A line per size, or per range of sizes, with a bar where there is room for one."""
    bins = part["histogram"]
    most = max(one["samples"] for one in bins)
    names = ["size>", "samples>", "share>", "bytes>", "per sample>"]
    rows = [_size_row(one, part["samples"]) for one in bins]
    if fitted := {b["size"]: b for b in part["buckets"] if b.get("micro_batch") is not None}:
        names += ["batch>", "needs>"]
        rows = [
            [*row, *_fitted(fitted.get(one["high"]))] for row, one in zip(rows, bins, strict=True)
        ]
    cells = [[name.removesuffix(">") for name in names], *rows]
    taken = sum(max(len(cell) for cell in column) for column in zip(*cells, strict=True))
    room = min(_WIDEST_BAR, width - taken - _GAP * len(names))
    if room < _NARROWEST_BAR:
        shown = [*range(4), *range(5, len(names))]
        table = _table(*(names[at] for at in shown))
        for row in rows:
            table.add_row(*(row[at] for at in shown))
        return table
    table = _table(*names[:3], "", *names[3:])
    for row, one in zip(rows, bins, strict=True):
        table.add_row(*row[:3], f"[cyan]{_bar(one['samples'] / most, room)}[/]", *row[3:])
    return table


def _size_row(one: dict[str, int], num_samples: int) -> list[str]:
    samples, num_bytes = one["samples"], one["bytes"]
    each = format_bytes(num_bytes / samples) if samples else ""
    share = _percent(samples / num_samples)
    return [_range(one), count(samples), share, format_bytes(num_bytes), each]


def _fitted(bucket: dict[str, Any] | None) -> list[str]:
    """A micro-batch, and what a card must hold for it."""
    if bucket is None:
        return ["–", "–"]
    micro = "too large" if not bucket["micro_batch"] else count(bucket["micro_batch"])
    return [micro, format_bytes(bucket["peak_bytes"] or 0)]


def _range(one: dict[str, int]) -> str:
    low, high = count(one["low"]), count(one["high"])
    return low if low == high else f"{low} – {high}"


def _bar(share: float, width: int) -> str:
    """Eighths of a character; anything at all shows."""
    eighths = max(round(share * width * 8), 1 if share > 0 else 0)
    full, rest = divmod(eighths, 8)
    return "█" * full + (_EIGHTHS[rest] if rest else "")


def _percent(share: float) -> str:
    if 0 < share < 0.001:
        return "<0.1%"
    return f"{share:.0%}" if share >= 0.0995 or share == 0 else f"{share:.1%}"


def _spread(part: dict[str, Any]) -> Iterator[str]:
    """How even the sizes are."""
    spread, buckets = part["spread"], part["buckets"]
    yield (
        f"median {count(spread['median'])}, mean {count(round(spread['mean']))}; 90% of the "
        f"samples are at most {count(spread['p90'])}"
    )
    even = f"evenness {_percent(spread['evenness'])} (100%: every size equally frequent)"
    rarest = min(buckets, key=lambda bucket: bucket["samples"])
    if len(buckets) > len(part["histogram"]):
        yield f"{even}; `--json` lists all sizes"
    elif any(bucket["samples"] > rarest["samples"] for bucket in buckets):
        yield f"{even}; rarest: {count(rarest['size'])}"
    else:
        yield even


def _padding(part: dict[str, Any], width: int) -> Table:
    padding, auto = part["padding"], part["padding"]["auto"]
    rows = [
        (f"all to {count(part['spread']['largest'])}", 1, padding["largest"]),
        ("buckets: auto", auto["buckets"], auto["waste"]),
        ("buckets: exact", part["spread"]["sizes"], padding["exact"]),
    ]
    room = min(_WIDEST_BAR, width - 44)
    has_room = room >= _NARROWEST_BAR
    table = _table("padded", "buckets>", "padding>", *([""] if has_room else []))
    for name, buckets, waste in rows:
        bar = [f"[yellow]{_bar(waste, room)}[/]"] if has_room else []
        table.add_row(name, count(buckets), _percent(waste), *bar)
    return table


def _largest(part: dict[str, Any]) -> Table:
    several = len(part["files"]) > 1
    table = _table("largest sample>", "size>", "bytes>", *(["file"] if several else []))
    for sample in part["largest"][:_MOST_LARGEST]:
        file = [_plain(sample["file"] or "–")] if several else []
        size, num_bytes = count(sample["size"]), format_bytes(sample["bytes"])
        table.add_row(str(sample["index"]), size, num_bytes, *file)
    return table


def _stages(stages: Sequence[dict[str, Any]]) -> Table:
    several = len({stage["experiment"] for stage in stages}) > 1
    has_budgets = any("budget" in stage for stage in stages)
    more = ("budget>", "of>", "needs>") if has_budgets else ()
    table = _table("stage", "size>", "samples>", *more)
    for stage in stages[:_MOST_STAGES]:
        name = f"{stage['experiment']}/{stage['stage']}" if several else stage["stage"]
        cells = _budget(stage) if has_budgets else []
        table.add_row(_plain(name), stage["size"] or "all", count(stage["samples"]), *cells)
    _add_rest(table, stages, _MOST_STAGES)
    return table


def _budget(stage: dict[str, Any]) -> list[str]:
    """What a micro-batch may cost, the most that fits the card, and what it must hold."""
    if "budget" not in stage:
        return ["–", "–", "–"]
    most = "–" if stage["cost_budget"] is None else count(stage["cost_budget"])
    budget = count(stage["budget"]) if stage["budget"] else "too large"
    return [budget, most, format_bytes(stage["peak_bytes"])]


def _print_proposal(part: dict[str, Any], console: Console) -> None:
    proposal = part["proposal"]
    if proposal is None:
        words = "for stages by size give the recipe `sample_sizes(self, dataset)`"
        console.print(words, highlight=False)
        return
    console.print("[bold]to paste into a spec:[/]\n", highlight=False)
    console.print(neutral(proposal["yaml"]), markup=False, highlight=False, soft_wrap=True, end="")


def _table(*columns: str) -> Table:
    """A `>` at the end of a name: to the right."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for name in columns:
        justify = "right" if name.endswith(">") else "left"
        table.add_column(name.removesuffix(">"), justify=justify, no_wrap=name != "file")  # type: ignore[arg-type]
    return table


def _add_rest(table: Table, rows: Sequence[object], most: int) -> None:
    if len(rows) > most:
        table.add_row(f"and {count(len(rows) - most)} more (`--json` has all)")


def _plain(text: str) -> str:
    return escape(neutral(text))
