"""What each switch buys, for people: a table, what is kept, and what was written.

Fed with the values of `tasuki tune --json`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from tasuki.units import format_bytes, format_seconds
from tasuki.views.text import neutral

_NARROW = 100
_LONG_START_S = 5.0
_CLOCKS = {
    "cpu": "CPU time of a step, and its wait for data",
    "wall": "wall time of a step, with its wait for data",
}


def show_tuning(found: dict[str, Any], *, console: Console | None = None) -> None:
    console = console or Console()
    _say(console, f"{found['experiment']}, stage {found['stage']}, on {_device(found)}", "bold")
    if found["dry_run"]:
        for row in found["variants"]:
            _say(console, f"  {row['label']}")
        _say(console, f"would be tried within {format_seconds(found['budget_s'])}")
        return
    base = found["baseline"]
    _say(
        console,
        f"as it is: {format_seconds(base['step_s'])} a step, {format_bytes(base['memory_bytes'])} "
        f"of tensors at a step's peak, loss {base['loss']:.4g} after {base['steps']} steps",
    )
    console.print(_table(found, console.width), highlight=False)
    for line in _explain(found):
        _say(console, line)
    for line in _outcome(found):
        _say(console, line)
    for text in [*found["notes"], *found["warnings"]]:
        words = f"[yellow]warning:[/] {escape(neutral(text))}"
        console.print(words, highlight=False, soft_wrap=True)


def _device(found: dict[str, Any]) -> str:
    threads = found["threads"]
    return f"{found['device']} ({threads} thread{'' if threads == 1 else 's'})"


def _table(found: dict[str, Any], width: int) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("switch", "gain", "memory", "Δ loss"):
        table.add_column(
            name, justify="left" if name == "switch" else "right", no_wrap=width >= _NARROW
        )
    table.add_column("verdict")
    table.add_row(*_cells("(another seed)", found["control"]), "what noise measures", style="dim")
    for row in found["rows"]:
        style = "green" if row["keep"] else ("dim" if row["error"] else "")
        table.add_row(*_cells(row["label"], row), neutral(row["verdict"]), style=style)
    together = found["together"]
    if together is not None:
        table.add_row(*_cells("together", together), neutral(together["verdict"]), style="bold")
    return table


def _cells(label: str, row: dict[str, Any]) -> tuple[str, str, str, str]:
    if row.get("gain") is None:
        return neutral(label), "–", "–", "–"
    gain = f"{row['gain']:.2f}× [{row['low']:.2f} … {row['high']:.2f}]"
    share = row["memory_share"]
    return neutral(label), gain, "–" if share is None else f"{share:.0%}", _loss(row)


def _loss(row: dict[str, Any]) -> str:
    if row["loss_is_same"]:
        return "same bits"
    difference = row["loss_difference"]
    return f"{difference:+.1%}" if abs(difference) >= 0.0005 else f"{difference:+.0e}"


def _explain(found: dict[str, Any]) -> Iterator[str]:
    yield (
        f"gain: {_CLOCKS[found['clock']]}; {found['confidence']:.0%} interval in brackets. "
        f"Δ loss: over the last quarter of the same steps; up to {found['tolerance']:.1%} counts "
        "as equal."
    )
    for row in found["rows"]:
        if row["keep"] and row["start_s"] > _LONG_START_S:
            took = format_seconds(row["start_s"])
            yield f"{row['label']} takes {took} before its first steps are done."


def _outcome(found: dict[str, Any]) -> Iterator[str]:
    written = found["written"]
    if written is not None and written["file"]:
        yield f"written to {written['file']}:"
        for before, after in written["lines"]:
            if before:
                yield f"  - {before.strip()}"
            yield f"  + {after.strip()}"
    elif written is not None:
        yield f"nothing was written: {written['reason']}"
    elif found["keep"]:
        told = ", ".join(f"{key}: {_plain(value)}" for key, value in found["keep"].items())
        yield f"worth keeping: {told} (`--write` puts it into the spec)"
    else:
        yield "nothing is worth keeping"


def _plain(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _say(console: Console, text: str, style: str = "") -> None:
    console.print(Text(neutral(text), style=style), highlight=False, soft_wrap=True)
