"""Whether a trade kept the gradient, and whether experiments may be compared: for people.

Fed with the values of `tasuki equiv --json`, with and without `--compare`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tasuki.views.text import neutral, say, warn

_STYLES = {"equal": "green", "equal on average": "green", "unequal": "red"}
_MOST_EXPERIMENTS = 6
_LONGEST = 24
_ANY_WIDTH = 1000


def show_equiv(found: dict[str, Any], *, console: Console | None = None) -> None:
    console = console or Console()
    say(console, f"{found['experiment']}, stage {found['stage']}: {_trade(found)}", "bold")
    _show_steps(found["steps"], console)
    verdict = found["verdict"]
    say(console, _verdict(found), label=f"{verdict}:", label_style=_STYLES[verdict])
    for culprit in found["culprits"]:
        label, style = ("culprit:", "red") if verdict == "unequal" else ("why:", "yellow")
        say(console, culprit["words"], label=label, label_style=style)
        say(console, f"  {culprit['advice']}")
        say(console, f"  {_evidence(culprit)}", "dim")
    for note in found["notes"]:
        say(console, note, label="note:", label_style="cyan")
    say(console, f"not checked: {'; '.join(_not_checked(found))}", "dim")
    for text in found["warnings"]:
        warn(console, text)


def _show_steps(steps: Sequence[dict[str, Any]], console: Console) -> None:
    table = _table(["step", "samples", "micro-batches", "difference", "in", ""])
    for row in steps:
        table.add_row(*map(Text, _cells(row)))
    if _fits(table, console):
        console.print("", table, "", highlight=False, sep="\n")
        return
    say(console, "")
    for row in steps:
        step, samples, pieces, difference, where, verdict = _cells(row)
        say(console, f"{step}: {samples} samples as {pieces}: {verdict}")
        say(console, f"  difference {difference} in {where}")
    say(console, "")


def _trade(found: dict[str, Any]) -> str:
    trade = found["trade"]
    pieces = (
        f"micro-batches within a cost of {trade['budget']}"
        if trade["budget"] is not None
        else f"{trade['micro_batch']} × {trade['accumulation']}"
    )
    ranks = f" × {trade['ranks']} ranks" if trade["ranks"] > 1 else ""
    anew = ", gradient checkpointing" if trade["computes_anew"] else ""
    return f"{pieces}{ranks}{anew} against one batch of {trade['effective_batch']}"


def _cells(row: dict[str, Any]) -> list[str]:
    size = f" of size {row['size']}" if row["size"] is not None else ""
    return [
        neutral(f"{row['kind']}{size}"),
        str(row["samples"]),
        _pieces(row["micro_batches"]),
        "–" if row["difference"] is None else f"{row['difference']:.1e}",
        neutral(row["error"] or row["parameter"] or "–")[:60],
        "equal" if row["equal"] else "DIFFERS",
    ]


def _pieces(counts: Sequence[Sequence[int]]) -> str:
    """`3+3+2`, of each rank."""
    told = " | ".join("+".join(map(str, share)) for share in counts)
    return told if len(told) <= _LONGEST else f"{told[: _LONGEST - 1]}…"


def _verdict(found: dict[str, Any]) -> str:
    num, limit = len(found["parameters"]), found["tolerance"]
    if found["verdict"] == "equal":
        return (
            f"the gradient of each of {num} parameters is that of the plain batch, to {limit:.0e} "
            "in float64"
        )
    if found["verdict"] == "equal on average":
        return (
            "random numbers are drawn anew for every micro-batch; with them at rest the gradient "
            f"of each of {num} parameters is that of the plain batch, to {limit:.0e}"
        )
    return f"the gradient is not that of the plain batch (compared to {limit:.0e})"


def _evidence(culprit: dict[str, Any]) -> str:
    at_rest = "not computable" if culprit["at_rest"] is None else f"{culprit['at_rest']:.1e}"
    if culprit["alone"] is None:
        return f"seen at work, not to be told apart from the others; all at rest: {at_rest}"
    return f"with this alone the sides differ by {culprit['alone']:.1e}; all at rest: {at_rest}"


def _not_checked(found: dict[str, Any]) -> Iterator[str]:
    yield from found["not_checked"]
    if found["other_stages"]:
        yield f"other stages ({', '.join(found['other_stages'])}): --stage names one"


def show_fairness(found: dict[str, Any], *, console: Console | None = None) -> None:
    """Of `tasuki equiv --compare`."""
    console = console or Console()
    names = found["experiments"]
    say(console, f"{len(names)} experiments: {', '.join(names)}", "bold")
    for kind, title in (
        ("unintended", "differs without being meant to"),
        ("intended", "differs on purpose"),
        ("harmless", "differs, and does no harm"),
    ):
        if found[kind]:
            say(console, f"\n{title}:")
            _show_differences(found[kind], names, console)
    say(console, "")
    for row in found["sums"]:
        values = sorted({str(v) for v in row["values"].values() if v is not None})
        if len(values) == 1:
            say(console, f"{_spelled(row['key'])}: {values[0]} in every experiment")
    for text in found["unknown"]:
        say(console, text, label="not known:", label_style="yellow")
    for note in found["notes"]:
        say(console, note, label="note:", label_style="cyan")
    if found["fair"]:
        say(console, "nothing differs but what is meant to", label="fair:", label_style="green")
    else:
        say(console, _unfair(found), label="unfair:", label_style="red")
    for text in found["warnings"]:
        warn(console, text)


def _unfair(found: dict[str, Any]) -> str:
    # What follows from another key is in the table; that one is to be looked at.
    rows = [row for row in found["unintended"] if not row["why"]] or found["unintended"]
    keys = list(dict.fromkeys(row["key"] for row in rows))
    return (
        f"{len(keys)} {'key differs' if len(keys) == 1 else 'keys differ'} without being meant to: "
        f"{', '.join(keys)}; make them the same, or say that they are the question with "
        f"--intended {','.join(keys)}"
    )


def _show_differences(
    rows: Sequence[dict[str, Any]], names: Sequence[str], console: Console
) -> None:
    """A table, or in a window that is too narrow for it a list: words are not broken."""
    table = _differences(rows, names)
    if _fits(table, console):
        console.print(table, highlight=False)
        return
    for row in rows:
        where = "" if row["stage"] is None else f" (stage {row['stage']})"
        say(console, f"{_spelled(row['key'])}{where}", "bold")
        for value, of in _by_value(row).items():
            say(console, f"  {value}: {_some(of)}")
        if row["why"]:
            say(console, f"  {row['why']}", "dim")


def _fits(table: Table, console: Console) -> bool:
    wide = console.options.update(max_width=_ANY_WIDTH)
    return table.__rich_measure__(console, wide).maximum <= console.width


def _differences(rows: Sequence[dict[str, Any]], names: Sequence[str]) -> Table:
    """A column for each experiment; with many of them, one line for each value."""
    has_why = any(row["why"] for row in rows)
    if len(names) > _MOST_EXPERIMENTS:
        table = _table(["key", "stage", "values"])
        for row in rows:
            table.add_row(*map(Text, (_spelled(row["key"]), _stage(row), _grouped(row))))
        return table
    table = _table(["key", "stage", *names, *(["why"] if has_why else [])])
    for row in rows:
        values = [_short(row["values"][name]) for name in names]
        why = [row["why"] or ""] if has_why else []
        table.add_row(*map(Text, (_spelled(row["key"]), _stage(row), *values, *why)))
    return table


def _grouped(row: dict[str, Any]) -> str:
    """`8: a, b and 3 more; 16: f`."""
    return "; ".join(f"{value}: {_some(names)}" for value, names in _by_value(row).items())


def _by_value(row: dict[str, Any]) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for name, value in row["values"].items():
        groups.setdefault(_short(value), []).append(name)
    return groups


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return neutral(", ".join(names[:3]) + more)


def _stage(row: dict[str, Any]) -> str:
    return "all" if row["stage"] is None else str(row["stage"])


def _spelled(key: str) -> str:
    return neutral(key.replace("_in_all", " in all"))


def _short(value: object) -> str:
    text = neutral("?" if value is None else str(value))
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def _table(names: Sequence[str]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, collapse_padding=True)
    for name in names:
        table.add_column(neutral(name), overflow="fold")
    return table
