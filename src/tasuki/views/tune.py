"""What each switch buys, for people: a table, what is kept, and what was written.

Fed with the values of `tasuki tune --json`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tasuki.units import format_bytes, format_seconds, format_step
from tasuki.views.text import neutral, say, warn

_PAD = 2
_WORDS = {
    "slower": "slower",
    "no gain": "no gain",
    "too noisy": "unclear",
    "above 1": "unclear",
    "quicker, but": "not kept",
    "not tried": "not tried",
    "no time left": "no time",
}
"""How verdicts begin, and what a narrow table says of them."""
_WORD_ROOM = len("not tried")
_NOISY = 1.1
"""Of what noise measured: a person may ask for a quieter clock."""
_LONG_START_S = 5.0
_Row = tuple[tuple[str, ...], str, str, str]
"""Cells, verdict, the word for it, style."""
_HEAD = ("switch", "gain", "memory", "Δ loss")
_CLOCKS = {
    "cpu": "CPU time of a step, and its wait for data",
    "wall": "wall time of a step, with its wait for data",
}


def show_tuning(found: dict[str, Any], *, console: Console | None = None) -> None:
    console = console or Console()
    say(console, f"{found['experiment']}, stage {found['stage']}, on {_device(found)}", "bold")
    if found["dry_run"]:
        for row in found["variants"]:
            say(console, f"  {row['label']}")
        say(console, _how_long(found))
        return
    base = found["baseline"]
    say(
        console,
        f"as it is: {format_seconds(base['step_s'])} a step, {format_bytes(base['memory_bytes'])} "
        f"of tensors at a step's peak, loss {base['loss']:.4g} after {base['steps']} steps",
    )
    rows = _rows(found)
    room = _room(rows, console.width)
    console.print("", _table(rows, room), "", highlight=False, sep="\n")
    for cells, verdict, _, style in rows:
        if len(verdict) > room:
            say(console, f"{cells[0]}: {verdict}", style)
    for line in _explain(found):
        say(console, line)
    for line in _outcome(found):
        say(console, line)
    for text in [*found["notes"], *found["warnings"]]:
        warn(console, text)


def show_batch(found: dict[str, Any], *, console: Console | None = None) -> None:
    """Of `tasuki tune --batch`."""
    console = console or Console()
    room = format_bytes(found["capacity_bytes"])
    where = f"{found['device']} with room for {room}"
    say(console, f"{found['experiment']}, stage {found['stage']}, on {where}", "bold")
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, collapse_padding=True)
    for name in ("size", "found", "factor", "micro-batch", "rank's batch", "peak", "predicted"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in found["buckets"]:
        table.add_row(*map(Text, _batch_cells(row, found["safety_factor"])))
    console.print("", table, "", highlight=False, sep="\n")
    num = len(found["tries"])
    say(console, f"{num} {'try' if num == 1 else 'tries'} on the device, {found['found_by']}")
    for line in _outcome(found):
        say(console, line)
    for text in found["warnings"]:
        warn(console, text)


def _batch_cells(row: dict[str, Any], factor: float) -> list[str]:
    peaks = (row["measured_bytes"], row["predicted_bytes"])
    return [
        "–" if row["size"] is None else str(row["size"]),
        f"{row['found']}{'+' if row['is_bounded'] else ''}",
        f"{factor:g}",
        str(row["micro_batch"]),
        str(row["share"]),
        *("–" if peak is None else format_bytes(peak) for peak in peaks),
    ]


def _device(found: dict[str, Any]) -> str:
    threads = found["threads"]
    return f"{found['device']} ({threads} thread{'' if threads == 1 else 's'})"


def _how_long(found: dict[str, Any]) -> str:
    took, step = format_seconds(found["expected_s"]), format_step(found["first_step_s"])
    return (
        f"would be tried in about {took} (steps of {step}, at least six pairs of some steps each; "
        "compilers take their time besides)"
    )


def _rows(found: dict[str, Any]) -> list[_Row]:
    rows: list[_Row] = [(_cells("(another seed)", found["control"]), "noise", "noise", "dim")]
    for row in found["rows"]:
        style = "green" if row["keep"] else ("dim" if row["error"] else "")
        rows.append((_cells(row["label"], row), neutral(row["verdict"]), _word(row), style))
    together = found["together"]
    if together is not None:
        verdict = neutral(together["verdict"])
        rows.append((_cells("together", together), verdict, _word(together), "bold"))
    return rows


def _word(row: dict[str, Any]) -> str:
    if row["keep"]:
        return "keep"
    known = (word for start, word in _WORDS.items() if row["verdict"].startswith(start))
    return next(known, "failed")


def _room(rows: list[_Row], width: int) -> int:
    """Characters that are left for a verdict in a line of its row."""
    widths = [max(len(cells[i]) for cells, *_ in rows) for i in range(len(_HEAD))]
    taken = sum(max(w, len(name)) + _PAD for w, name in zip(widths, _HEAD, strict=True))
    return max(_WORD_ROOM, width - taken)


def _table(rows: list[_Row], room: int) -> Table:
    """One line for each row, whatever the window: why follows below where it is longer."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, collapse_padding=True)
    for name in _HEAD:
        table.add_column(name, justify="left" if name == "switch" else "right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for cells, verdict, word, style in rows:
        told = verdict if len(verdict) <= room else word
        table.add_row(*(Text(cell) for cell in (*cells, told)), style=style)
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
        f"Δ loss: over the last quarter of the same steps; {_equal(found)}."
    )
    control = found["control"]
    reach = max(control["high"], 1 / control["low"])
    if found["clock"] == "wall" and found["device"] == "cpu" and reach > _NOISY:
        yield (
            f"noise alone measured up to {reach:.2f}×: others use this machine; with `--set "
            "cluster.cpus=1` CPU time is measured, which they hardly change."
        )
    for row in found["rows"]:
        if row["keep"] and row["start_s"] > _LONG_START_S:
            took = format_seconds(row["start_s"])
            yield f"{row['label']} takes {took} before its first steps are done."


def _equal(found: dict[str, Any]) -> str:
    """What of the loss counts as equal, and why: what another seed changes, within limits."""
    limit, seed = found["tolerance"], abs(found["control"]["loss_difference"])
    if seed > limit:
        return (
            f"up to {limit:.1%} counts as equal, no more, although another seed changed {seed:.1%}"
        )
    if seed < limit:
        return f"up to {limit:.1%} counts as equal (another seed changed {seed:.1%})"
    return f"up to {limit:.1%}, as much as another seed changed, counts as equal"


def _outcome(found: dict[str, Any]) -> Iterator[str]:
    written = found["written"]
    if written is not None and written["file"]:
        yield f"written to {written['file']}:"
        for before, after in written["lines"]:
            if before:
                yield f"  - {before.strip()}"
            yield f"  + {after.strip()}"
        yield from written["stays"]
    elif written is not None:
        yield f"nothing was written: {written['reason']}"
    elif found["keep"]:
        told = ", ".join(f"{key}: {_plain(value)}" for key, value in found["keep"].items())
        by_hand = any(isinstance(value, dict) for value in found["keep"].values())
        how = "to be written by hand" if by_hand else "`--write` puts it into the spec"
        yield f"worth keeping: {told} ({how})"
    else:
        yield "nothing is worth keeping"


def _plain(value: object) -> str:
    """As a spec has it."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {_plain(one)}' for key, one in value.items())}}}"
    return str(value).lower() if isinstance(value, bool) else str(value)
