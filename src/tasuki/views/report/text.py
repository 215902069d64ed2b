"""The report as Markdown for wikis and papers, and its results as CSV. Pure."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from tasuki.spec.spelling import spell
from tasuki.units import format_seconds
from tasuki.views.marks import without_paths
from tasuki.views.report.results import known_columns, result_rows
from tasuki.views.report.times import PARTS, part_names
from tasuki.views.text import neutral, number

_Values = Mapping[str, Any]
_ACTIVE = re.compile(r"([\\`*\[\]<>|~])")
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def csv_of(report: _Values) -> str:
    """A row per stage, numbers as they are; empty: unknown."""
    rows = result_rows(report)
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    if rows:
        writer.writerow(_cell(key.replace(" ", "_")) for key in rows[0])
    for row in rows:
        writer.writerow(_cell(value) for value in row.values())
    return out.getvalue()


def _cell(value: Any) -> Any:
    """A text that a spreadsheet would take for a formula is quoted."""
    if value is None:
        return ""
    if not isinstance(value, str):
        return value
    text = neutral(value)
    return f"'{text}" if text.startswith(_FORMULA) else text


def markdown_of(report: _Values) -> str:
    return "\n".join(_lines(report)).rstrip() + "\n"


def _lines(report: _Values) -> Iterator[str]:
    names = [run["experiment"] for run in report["runs"]]
    yield f"# {_plain(', '.join(names))}\n"
    yield f"Made by `tasuki report` at {report['made_at']}.\n"
    told = [f"{run['experiment']}: {text}" for run in report["runs"] for text in run["problems"]]
    if told:
        yield "## What could not be read\n"
        yield "\n".join(f"- {_plain(text)}" for text in told) + "\n"
    yield "## Results\n"
    rows = known_columns(result_rows(report))
    yield from _table([{k: shown(k, v) for k, v in row.items()} for row in rows])
    if rows := difference_rows([run for run in report["runs"] if run["spec"]]):
        yield "## Differing settings\n"
        yield from _table(rows)
    yield "## Where the time went\n"
    yield from _table(ledger_rows(report["runs"]))
    yield "## Attempts\n"
    for run in report["runs"]:
        if len(names) > 1:
            yield f"### {_plain(run['experiment'])}\n"
        for attempt in run["story"]:
            yield f"{attempt['attempt']}. {_plain(attempt['sentence'])}"
        yield ""
    yield "## Environment\n"
    yield from _table(environment_rows(report["runs"]))


def _table(rows: Sequence[Mapping[str, str]]) -> Iterator[str]:
    if not rows:
        yield "Nothing is known yet.\n"
        return
    yield _line(rows[0])
    yield "|" + " --- |" * len(rows[0])
    yield from (_line(row.values()) for row in rows)
    yield ""


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(_plain(cell) for cell in cells)} |"


def _plain(text: str) -> str:
    """Inert in Markdown, on one line."""
    flat = " ".join(neutral(without_paths(str(text))).split())
    return _ACTIVE.sub(r"\\\1", flat)


# -- tables that the page has, too -----------------------------------------------------------------


def shown(key: str, value: Any) -> str:
    """A value of the results for people; `key`: its column's, not what a script called it."""
    if value is None:
        return "–"
    if key == "wall_s":  # others that end so have a script's own values, of whatever kind
        return format_seconds(value)
    if key == "goodput":
        return f"{value:.0%}"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else number(value)


def column_names(runs: Sequence[_Values]) -> list[str]:
    """A name for each run: of those with equal names, in different folders, each has a number."""
    names = [str(run["experiment"]) for run in runs]
    seen: Counter[str] = Counter()
    found = []
    for name in names:
        seen[name] += 1
        found.append(f"{name} ({seen[name]})" if names.count(name) > 1 else name)
    return found


def ledger_rows(runs: Sequence[_Values]) -> list[dict[str, str]]:
    """Parts by run, seconds and share; the wall clock last."""
    parts = [part for part in PARTS if any(_seconds(run, part) >= 0.005 for run in runs)]
    named = list(zip(column_names(runs), runs, strict=True))
    names = part_names(runs)
    rows = [
        {"part": names[part], **{name: _of_wall(run, part) for name, run in named}}
        for part in parts
    ]
    walls = {name: shown("wall_s", run["wall_s"]) for name, run in named}
    return [*rows, {"part": "wall clock", **walls}] if rows else []


def _seconds(run: _Values, part: str) -> float:
    return float(run["ledger"].get("parts", {}).get(part, 0.0))


def _of_wall(run: _Values, part: str) -> str:
    seconds, wall = _seconds(run, part), run["wall_s"]
    return f"{format_seconds(seconds)} ({seconds / wall:.0%})" if wall else "–"


def environment_rows(runs: Sequence[_Values]) -> list[dict[str, str]]:
    keys = dict.fromkeys(key for run in runs for key in run["environment"])
    named = list(zip(column_names(runs), runs, strict=True))
    return [
        {
            "": key.replace("_", " "),
            **{name: str(run["environment"].get(key, "–")) for name, run in named},
        }
        for key in keys
    ]


def difference_rows(runs: Sequence[_Values]) -> list[dict[str, str]]:
    """Return a row for each setting that is not the same in all specs, stage by stage."""
    flat = {name: _flatten(run["spec"]) for name, run in zip(column_names(runs), runs, strict=True)}
    return [
        {"": key, **{name: values.get(key, "–") for name, values in flat.items()}}
        for key in dict.fromkeys(key for values in flat.values() for key in values)
        if len({values.get(key) for values in flat.values()}) > 1
    ]


def _flatten(spec: _Values) -> dict[str, str]:
    settings = {f"cluster {key}": spell(value) for key, value in spec["cluster"].items()}
    for stage in spec["stages"]:
        for key, value in {**spec["all"], **stage}.items():
            if key != "name":
                settings[f"{stage['name']} {key}"] = spell(value)
    return settings
