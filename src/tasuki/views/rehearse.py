"""What passed in a rehearsal: a table, then what failed and what to do. Fed with the values of
`--json`."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.text import Text

from tasuki.units import format_bytes, format_seconds
from tasuki.views.text import neutral, wrap

_WIDTH = 100
_NAME = 14
_COLUMNS = ("imports", "data", "steps", "save", "load", "evaluate")
_WORDS = {"ok": "ok", "failed": "FAILED", "skipped": "skipped", "not reached": "–", "none": "·"}
_STYLES = {r"\bok\b": "green", r"\bFAILED\b": "red bold", r"\bskipped\b": "yellow"}


def show_rehearsal(report: dict[str, Any], *, console: Console | None = None) -> None:
    console = console or Console()
    for number, line in enumerate(rehearsal_lines(report)):
        text = Text(wrap(line, console.width if console.is_terminal else None))
        if number == 0:
            text.stylize("bold")
        elif not line.startswith("  "):
            for mark, style in _STYLES.items():
                text.highlight_regex(mark, style)
        console.print(text, highlight=False, soft_wrap=True)


def rehearsal_lines(report: dict[str, Any]) -> list[str]:
    num = len(report["stages"])
    stages = f"{num} stage" if num == 1 else f"{num} stages"
    left = len(report["not_reached"])
    failed = sum(1 for row in report["stages"] if not row["ok"]) - left
    told = [f"{failed} did not pass"] if failed else []
    told += [f"{left} not reached"] if left else []
    told += [] if told or report["ok"] else ["see below"]
    title = f"Rehearsed {stages}: {', '.join(told) or 'all passed'}"
    lines = [
        f"{title}, in {format_seconds(report['seconds'])}",
        "",
        *_table(report["stages"]),
        *_failures(report["stages"]),
        *_findings(report["findings"]),
        *_rest(report),
    ]
    return [neutral(line) for line in lines]


def _table(rows: list[dict[str, Any]]) -> Iterator[str]:
    names = [f"{row['experiment']}/{row['stage']}" for row in rows]
    has_memory = any(row["peak_bytes"] for row in rows)
    head = ["stage", *_COLUMNS, "time", *(["peak memory"] if has_memory else [])]
    cells = [head, *(_row(name, row, has_memory) for name, row in zip(names, rows, strict=True))]
    widths = [max(len(line[at]) for line in cells) for at in range(len(head))]
    for line in cells:
        padded = [text.ljust(width) for text, width in zip(line, widths, strict=True)]
        yield "  ".join(padded).rstrip()


def _row(name: str, row: dict[str, Any], has_memory: bool) -> list[str]:
    marks = [_WORDS[row["cells"][column]["state"]] for column in _COLUMNS]
    took = format_seconds(row["seconds"]) if row["seconds"] else "–"
    peak = format_bytes(row["peak_bytes"]) if row["peak_bytes"] else "–"
    return [name, *marks, took, *([peak] if has_memory else [])]


def _failures(rows: list[dict[str, Any]]) -> Iterator[str]:
    """What several stages say alike is said once."""
    said: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        for column in _COLUMNS:
            cell = row["cells"][column]
            if cell["state"] == "failed":
                key = (cell["message"], cell["hint"])
                said.setdefault(key, []).append(f"{row['experiment']}/{row['stage']}: {column}")
    for (message, hint), where in said.items():
        yield ""
        yield from _wrapped("failed", "; ".join(where))
        yield from _wrapped("", message)
        if hint:
            yield from _wrapped("what to do", hint)
    skipped = [
        f"{row['experiment']}/{row['stage']} {cell['message']}"
        for row in rows
        for cell in [next(iter(_of_state(row, "skipped")), None)]
        if cell is not None
    ]
    if skipped:
        yield ""
        yield from _wrapped("skipped", "; ".join(skipped))


def _of_state(row: dict[str, Any], state: str) -> list[dict[str, Any]]:
    return [cell for cell in row["cells"].values() if cell["state"] == state]


def _findings(findings: list[dict[str, Any]]) -> Iterator[str]:
    for found in findings:
        yield ""
        yield from _wrapped(found["level"], found["what"])
        if found["hint"]:
            yield from _wrapped("what to do", found["hint"])


def _rest(report: dict[str, Any]) -> Iterator[str]:
    yield ""
    if report["is_stand_in"]:
        yield from _wrapped(
            "on", f"the CPU: there is no GPU here (the spec asks for {_gpu(report)})"
        )
    said: dict[str, list[str]] = {}
    for row in report["stages"]:
        for words in [*row["shortened"], *row["warnings"]]:
            said.setdefault(words, []).append(row["stage"])
    for words, stages in said.items():
        yield from _wrapped("note", f"{', '.join(dict.fromkeys(stages))}: {words}")
    if report["not_reached"]:
        names = ", ".join(report["not_reached"])
        budget = format_seconds(report["budget_s"])
        yield from _wrapped("not reached", f"{names}: {budget} were over (`--budget 5m`)")
        yield from _standing(report["stages"])
    yield from _wrapped("not checked", "; ".join(report["not_checked"]))


def _standing(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Who was at work when the budget was used up may hang."""
    stood = [
        f"{row['experiment']}/{row['stage']}: {column}, {cell['message']}"
        for row in rows
        for column, cell in row["cells"].items()
        if cell["state"] == "not reached" and cell["message"]
    ]
    if stood:
        yield from _wrapped("stood then", "; ".join(stood))
        yield from _wrapped(
            "what to do", "see whether it waits there for ever, or only needs longer"
        )


def _gpu(report: dict[str, Any]) -> str:
    return report["gpu"] or "one"


def _wrapped(name: str, text: str) -> list[str]:
    head = f"  {name:<{_NAME}}"
    return [
        line
        for part in text.splitlines() or [""]
        for line in textwrap.wrap(
            part,
            min(_WIDTH, shutil.get_terminal_size((_WIDTH, 24)).columns),
            initial_indent=head,
            subsequent_indent=" " * len(head),
            break_long_words=False,
            break_on_hyphens=False,
        )
    ] or [head.rstrip()]
