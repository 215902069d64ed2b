"""Checkpoints for people: what there is, what is in one, is it whole, where do two differ.

Fed with the values of `tasuki checkpoint … --json`. Names come from files: they are neutralised,
and shortened in the middle where a window is narrow.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape

from tasuki.units import format_bytes, format_seconds
from tasuki.views.text import count, neutral, say

_GAP = 3
"""Between the columns of a table."""
_MOST_ENTRIES = 40
"""Of a group, unless a pattern asks for more."""
_MOST_DIFFERING = 30
_MOST_LEFTOVERS = 10
_TITLES = {"random": "random states"}
_COLOURS = {"ok": "green", "damaged": "red", "newer": "yellow", "unreadable": "red", "gone": "dim"}


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table that gives way when there is no room."""

    name: str
    is_right: bool = False
    least: int = 0
    """Cells may be shortened to this width; 0: they may not."""
    drop: int = 0
    """The column may be left out, the one with the highest number first; 0: it stays."""


def make_table(
    columns: Sequence[Column], rows: Iterable[Sequence[str]], width: int
) -> tuple[str, list[str]]:
    """(the head, the lines) of a table that fits: cells are shortened as far as they may, then
    columns are left out. Plain text: a checkpoint may have more entries than rich likes to lay out.
    """
    cells = [[_plain(cell) for cell in row] for row in rows]
    widths = [
        max([cell_len(column.name), *(cell_len(row[number]) for row in cells)])
        for number, column in enumerate(columns)
    ]
    shown, widths = _fit(columns, widths, width)

    def line(row: Sequence[str]) -> str:
        return (" " * _GAP).join(_cell(row[n], widths[n], columns[n]) for n in shown).rstrip()

    head = line([column.name for column in columns])
    rule = "─" * min(width, sum(widths[n] for n in shown) + _GAP * (len(shown) - 1))
    return head, [rule, *(line(row) for row in cells)]


def _cell(text: str, width: int, column: Column) -> str:
    short = shorten(text, width)
    blanks = " " * (width - cell_len(short))
    return blanks + short if column.is_right else short + blanks


def _plain(text: str) -> str:
    return text if text.isprintable() else neutral(text).replace("\n", " ").replace("\t", " ")


def _print_table(
    console: Console, columns: Sequence[Column], rows: Iterable[Sequence[str]]
) -> None:
    head, lines = make_table(columns, rows, console.width)
    _say(console, head, bold=True)
    console.out("\n".join(lines), highlight=False)


def _fit(columns: Sequence[Column], widths: list[int], width: int) -> tuple[list[int], list[int]]:
    """Which columns are shown, and how wide each may be."""
    shown = list(range(len(columns)))
    least = [min(w, column.least or w) for w, column in zip(widths, columns, strict=True)]

    def over(some: Sequence[int]) -> int:
        return sum(some[number] for number in shown) + _GAP * (len(shown) - 1) - width

    while over(least) > 0 and any(columns[number].drop for number in shown):
        shown.remove(max(shown, key=lambda number: columns[number].drop))
    fitted = list(widths)
    for bounds in (least, [1] * len(widths)):  # beyond what they may where nothing else helps
        for number in sorted(shown, key=lambda number: bounds[number] - fitted[number]):
            fitted[number] -= min(max(over(fitted), 0), max(fitted[number] - bounds[number], 0))
    return shown, fitted


def shorten(text: str, width: int) -> str:
    """The beginning and the end of a text that is too wide."""
    if cell_len(text) <= width:
        return text
    head = _begin(text, width // 2)
    return f"{head}…{_begin(text[::-1], width - 1 - cell_len(head))[::-1]}"


def _begin(text: str, width: int) -> str:
    taken = 0
    for number, char in enumerate(text):
        taken += cell_len(char)
        if taken > width:
            return text[:number]
    return text


# -- show -----------------------------------------------------------------------------------------


def show_checkpoints(told: dict[str, Any], *, folder: str, console: Console | None = None) -> None:
    console = console or Console()
    if "checkpoint" in told:
        _show_one(told, console)
        return
    if not told["runs"]:
        _say(console, f"no runs in {folder}")
    for number, run in enumerate(told["runs"]):
        if number:
            console.print()
        _show_run(run, console)


def _show_run(run: dict[str, Any], console: Console) -> None:
    rows = run["checkpoints"]
    if run["problem"]:
        _say(console, f"{run['experiment']}: {run['problem']}")
    elif not rows and not run["leftovers"]:
        _say(console, f"{run['experiment']}: no checkpoints yet")
    if not rows and not run["leftovers"]:
        return
    what = "1 checkpoint" if len(rows) == 1 else f"{count(len(rows))} checkpoints"
    _say(console, f"{run['experiment']}: {what}, {format_bytes(run['bytes'])} on disk", bold=True)
    if rows:
        console.print()
        _print_table(console, _RUN_COLUMNS, [_row(row) for row in rows])
    for line in _after(run):
        console.print()
        _say(console, line)


_RUN_COLUMNS = (
    Column("checkpoint"),
    Column("stage", least=8),
    Column("epoch", is_right=True, drop=3),
    Column("step", is_right=True),
    Column("samples", is_right=True, drop=4),
    Column("size", is_right=True, drop=1),
    Column("age", is_right=True, drop=2),
    Column("attempt", is_right=True, drop=5),
    Column("", least=7),
)


def _row(row: dict[str, Any]) -> list[str]:
    step = count(row["stage_step"])
    if row["total_steps"] is not None:
        step = f"{step}/{count(row['total_steps'])}"
    return [
        row["name"],
        row["stage"] or "–",
        count(row["epoch"]),
        step,
        count(row["samples"]),
        format_bytes(row["bytes"]),
        format_seconds(row["age_s"]) if row["age_s"] is not None else "–",
        count(row["claim"]),
        ", ".join(_notes(row)),
    ]


def _notes(row: dict[str, Any]) -> Iterator[str]:
    if row["state"] != "ok":
        yield {"newer": "of a newer tasuki"}.get(row["state"], row["state"])
    if row["is_latest"]:
        yield "latest"
    if row["is_parent"]:
        yield "parent"
    if not row["in_lineage"]:
        yield "outside"


def _after(run: dict[str, Any]) -> Iterator[str]:
    for row in run["checkpoints"]:
        for finding in row["findings"]:
            yield f"{row['name']}: {_finding(finding)}"
    for one in run["frozen"]:
        used = len(one["used_by"])
        yield f"{one['name']}: {format_bytes(one['bytes'])}, frozen parameters of {used} of them"
    for one in run["leftovers"][:_MOST_LEFTOVERS]:
        yield f"{one['name']}: {one['kind']}, {format_bytes(one['bytes'])}"
    if (more := len(run["leftovers"]) - _MOST_LEFTOVERS) > 0:
        yield f"and {count(more)} more like these (`--json` has all)"


def _finding(finding: dict[str, str]) -> str:
    return f"{finding['file']} {finding['words']}".strip()


def _show_one(told: dict[str, Any], console: Console) -> None:
    one = told["checkpoint"]
    name = f"{one['run']}@{one['name']}" if one["run"] else one["name"]
    _say(console, name, bold=True)
    for line in _manifest_lines(one):
        _say(console, f"  {line}")
    for finding in one["findings"]:
        say(console, _finding(finding), label=f"{one['state']}:", label_style="red")
    limit = _MOST_ENTRIES if told["pattern"] is None else None
    for group in told["groups"]:
        entries = [entry for entry in told["entries"] if entry["group"] == group["group"]]
        if entries:
            console.print()
            _show_group(group, entries, console, limit=limit)
    if told["pattern"] is not None and not told["entries"]:
        _say(console, f"\nno entry matches `{told['pattern']}`")


def _manifest_lines(one: dict[str, Any]) -> Iterator[str]:
    yield one["folder"]
    total = f" of {count(one['total_steps'])}" if one["total_steps"] is not None else ""
    what = ", its start" if one["is_start"] else ", its end" if one["is_end"] else ""
    step = f"step {count(one['stage_step'])}{total}"
    yield (
        f"stage {one['stage']}{what}: epoch {one['epoch']}, {step}, "
        f"{count(one['samples'])} samples (step {count(one['step'])} of the run)"
    )
    ranks = "1 rank" if one["world"] == 1 else f"{one['world']} ranks"
    yield f"attempt {one['claim']}, {ranks}; the one before: {one['parent'] or 'none'}"
    age = f" ({format_seconds(one['age_s'])} ago)" if one["age_s"] is not None else ""
    yield f"committed {one['created_at']}{age}"
    files = [f"{file['name']} {format_bytes(file['bytes'])}" for file in one["files"][:4]]
    more = len(one["files"]) - len(files)
    rest = f", and {count(more)} more" if more else ""
    yield f"{format_bytes(one['bytes'])}: {', '.join(files)}{rest}"
    for file in one["frozen"]:
        yield f"frozen parameters: {file['name']} {format_bytes(file['bytes'])}"
    best = one["facts"].get("best")
    if isinstance(best, dict):
        yield f"best so far: {best.get('metric')} {best.get('value')} at step {best.get('step')}"


def _show_group(
    group: dict[str, Any], entries: Sequence[dict[str, Any]], console: Console, *, limit: int | None
) -> None:
    title = _TITLES.get(group["group"], group["group"])
    all_of = "1 entry" if group["entries"] == 1 else f"{count(group['entries'])} entries"
    matching = f"{count(len(entries))} of " if len(entries) < group["entries"] else ""
    _say(console, f"{title}: {matching}{all_of}, {format_bytes(group['bytes'])}", bold=True)
    shown = entries[:limit]
    _print_table(console, _ENTRY_COLUMNS, [_entry_row(entry) for entry in shown])
    if (more := len(entries) - len(shown)) > 0:
        _say(console, f"and {count(more)} more (`--entries '*'` shows all, `--json` has all)")


_ENTRY_COLUMNS = (
    Column("entry", least=28),
    Column("type"),
    Column("shape or value", least=14),
    Column("bytes", is_right=True, drop=1),
)


def _entry_row(entry: dict[str, Any]) -> list[str]:
    if entry["kind"] == "value":
        return [entry["name"], entry["dtype"], entry["value"], ""]
    shape = " × ".join(count(size) for size in entry["shape"]) or "one number"
    if entry["same_as"]:
        return [entry["name"], entry["dtype"], f"{shape}, as {entry['same_as']}", ""]
    if (entry["file"] or "").startswith("frozen/"):
        shape += ", frozen"
    return [entry["name"], entry["dtype"], shape, format_bytes(entry["bytes"])]


# -- verify ---------------------------------------------------------------------------------------


def show_verified(told: dict[str, Any], *, folder: str, console: Console | None = None) -> None:
    console = console or Console()
    if not told["runs"]:
        _say(console, f"no runs in {folder}")
    for number, run in enumerate(told["runs"]):
        if number:
            console.print()
        if run["experiment"] is not None:
            _say(console, run["experiment"], bold=True)
        for row in run["checkpoints"]:
            _show_verdict(row, console, is_outside=not row["in_lineage"])
        if run["resume_words"]:
            _say(console, run["resume_words"])


def _show_verdict(row: dict[str, Any], console: Console, *, is_outside: bool) -> None:
    colour = _COLOURS.get(row["state"], "default")
    size = format_bytes(row["bytes"])
    words = f"[{colour}]{row['state']:<8}[/] {escape(neutral(row['name']))}  {size}"
    if is_outside:
        words += "  (outside of the lineage)"
    console.print(words, highlight=False, soft_wrap=True)
    for finding in row["findings"]:
        _say(console, f"         {_finding(finding)}")


# -- diff -----------------------------------------------------------------------------------------


def show_difference(told: dict[str, Any], *, console: Console | None = None) -> None:
    console = console or Console()
    for side in ("a", "b"):
        _say(console, f"{side}: {_side(told[side])}")
    console.print()
    if told["equal"]:
        what = "1 entry" if told["entries"] == 1 else f"{count(told['entries'])} entries"
        _say(console, f"equal bit for bit: {what}", bold=True)
        return
    first = told["first"]
    _say(console, f"first difference: {first['name']}", bold=True)
    for line in _difference_lines(first):
        _say(console, f"  {line}")
    console.print()
    _print_table(console, _GROUP_COLUMNS, [_group_row(g) for g in told["groups"]])
    if told["differing"]:
        console.print()
        rows = [_differing_row(one) for one in told["differing"][:_MOST_DIFFERING]]
        _print_table(console, _DIFFERING_COLUMNS, rows)
        _say_more(console, len(told["differing"]) - len(rows))
    for side in ("a", "b"):
        _show_only(told[f"only_in_{side}"], side, console)


def _side(side: dict[str, Any]) -> str:
    name = f"{side['run']}@{side['name']}" if side["run"] else side["folder"]
    ranks = f", {side['world']} ranks" if side["world"] > 1 else ""
    return f"{name}  stage {side['stage']}, step {count(side['stage_step'])}{ranks}"


def _difference_lines(one: dict[str, Any]) -> Iterator[str]:
    if one["only_in"] is not None:
        yield f"{one['type']}, only in {one['only_in']}"
        return
    if one["num_differing"] is None or one["largest"] is None:
        yield one["words"]
        return
    what = "element" if one["elements"] == 1 else "elements"
    yield f"{one['type']}: {count(one['num_differing'])} of {count(one['elements'])} {what} differ"
    at = f" at {one['at']}" if one["at"] else ""
    yield f"largest absolute difference {_number(one['largest'])}: {one['a']} and {one['b']}{at}"
    if one["bits"] is not None:
        ulps = f"; at most {count(one['ulps'])} ulp apart" if one["ulps"] is not None else ""
        yield f"{count(one['bits'])} bits differ{ulps}"


_GROUP_COLUMNS = (
    Column("group"),
    Column("in both", is_right=True),
    Column("differ", is_right=True),
    Column("only in a", is_right=True),
    Column("only in b", is_right=True),
)


def _group_row(group: dict[str, Any]) -> list[str]:
    counts = [group[key] for key in ("entries", "differing", "only_in_a", "only_in_b")]
    title = _TITLES.get(group["group"], group["group"])
    return [title, *(count(number) if number else "–" for number in counts)]


_DIFFERING_COLUMNS = (
    Column("differs", least=20),
    Column("type", drop=2),
    Column("elements", is_right=True),
    Column("largest", is_right=True, least=12),
    Column("ulp", is_right=True, drop=1),
)


def _differing_row(one: dict[str, Any]) -> list[str]:
    if one["num_differing"] is None:
        return [one["name"], one["type"], "", one["words"], ""]
    elements = f"{count(one['num_differing'])} of {count(one['elements'])}"
    largest = _number(one["largest"]) if one["largest"] is not None else "–"
    ulps = count(one["ulps"]) if one["ulps"] is not None else ""
    return [one["name"], one["type"], elements, largest, ulps]


def _show_only(some: Sequence[dict[str, Any]], side: str, console: Console) -> None:
    if not some:
        return
    console.print()
    columns = (Column(f"only in {side}", least=20), Column("type"))
    rows = [[one["name"], one["type"]] for one in some[:_MOST_DIFFERING]]
    _print_table(console, columns, rows)
    _say_more(console, len(some) - len(rows))


def _number(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.4g}"


# -- prune ----------------------------------------------------------------------------------------


def show_pruned(told: dict[str, Any], *, console: Console | None = None) -> None:
    console = console or Console()
    verb = "would remove" if told["dry_run"] else "removed"
    for one in told["removed"]:
        _say(console, f"{verb} {one['name']} ({one['kind']}, {format_bytes(one['bytes'])})")
    if told["stopped"]:
        console.print(f"[yellow]warning:[/] {escape(neutral(told['stopped']))}", highlight=False)
    stays = len(told["kept"])
    what = "1 checkpoint stays" if stays == 1 else f"{count(stays)} checkpoints stay"
    if not told["removed"]:
        _say(console, f"nothing to remove: {what}")
        return
    made = "would make" if told["dry_run"] else "made"
    _say(console, f"{made} {format_bytes(told['bytes'])} of room: {what}")


def _say(console: Console, text: str, *, bold: bool = False) -> None:
    say(console, text, "bold" if bold else "")


def _say_more(console: Console, number: int) -> None:
    if number > 0:
        _say(console, f"and {count(number)} more (`--json` has all)")
