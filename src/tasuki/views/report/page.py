"""The report as one page: results, curves, plan and reality, times, attempts, environment, spec.

Pure. One file without scripts: it can be mailed, printed and kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tasuki.units import format_seconds
from tasuki.views.marks import marked
from tasuki.views.page import page_around, table_of, text_in
from tasuki.views.report import MOST_DRAWN
from tasuki.views.report.curves import curves_of, kinds_of_marks
from tasuki.views.report.results import known_columns, run_rows, stage_rows, whose_result
from tasuki.views.report.text import (
    column_names,
    difference_rows,
    environment_rows,
    ledger_rows,
    shown,
)
from tasuki.views.report.times import gantt_of, waterfall_of
from tasuki.views.text import count, goodput_of, money, number
from tasuki.views.told_spec import spec_lines

_Values = Mapping[str, Any]
_WORDS = ("run", "stage", "state")
_STYLES = ("page.css", "report/report.css")


def page_of(report: _Values) -> str:
    """The whole file."""
    names = [run["experiment"] for run in report["runs"]]
    title = names[0] if len(names) == 1 else f"{len(names)} runs"
    return page_around(f"report: {title}", _body(report, names), styles=_STYLES)


def _body(report: _Values, names: Sequence[str]) -> Iterator[str]:
    runs = report["runs"]
    drawn = runs[:MOST_DRAWN]
    title = names[0] if len(names) == 1 else ", ".join(names[:4]) + (" …" if len(names) > 4 else "")
    yield f"<main>\n<h1>{text_in(title)}</h1>"
    project = next((run["spec"]["project"] for run in runs if run["spec"]), None)
    of = f", project {marked(project)}" if project else ""
    yield f'<p class="soft">Made by tasuki report at {marked(report["made_at"])}{of}.</p>'
    if len(runs) == 1:
        yield from _facts(runs[0])
    yield from _problems(runs)
    yield from _results(report)
    yield from _curves(drawn, left_out=len(runs) - len(drawn))
    yield from _gantt(report, names)
    yield from _times(drawn)
    yield from _attempts(runs)
    yield from _environment(runs)
    yield from _specs(runs)
    yield "</main>"


def _facts(run: _Values) -> Iterator[str]:
    told = {
        "state": run["state"] or "cannot be read",
        "wall clock": shown("wall_s", run["wall_s"]),
        "goodput": shown("goodput", run["goodput"]),
        "attempts": count(run["attempts"])
        + (f", {run['preemptions']} preempted" if run["preemptions"] else ""),
    }
    if run["gpu_hours"] is not None:
        told["GPU-hours"] = number(run["gpu_hours"])
    if run["cost"] is not None:
        told["cost"] = money(run["cost"])
    last = next((stage for stage in reversed(run["results"]) if stage["evaluation"]), None)
    for key, value in list((last or {}).get("evaluation", {}).items())[:3]:
        column = f"{whose_result(last or {})} {key}"
        told[column] = shown(column, value)
    yield '<dl class="facts">'
    yield from (f"<div><dt>{marked(k)}</dt><dd>{text_in(v)}</dd></div>" for k, v in told.items())
    yield "</dl>"
    if run["reason"]:
        yield f"<p>{text_in(run['reason'])}</p>"


def _problems(runs: Sequence[_Values]) -> Iterator[str]:
    told = [f"{run['experiment']}: {text}" for run in runs for text in run["problems"]]
    if told:
        yield '<h2>What could not be read</h2>\n<ul class="problems">'
        yield from (f"<li>{text_in(text)}</li>" for text in told)
        yield "</ul>"


def _results(report: _Values) -> Iterator[str]:
    yield "<h2>Results</h2>"
    if not report["runs"]:
        yield "<p>There are no runs.</p>"
        return
    told = "What each stage came to: loss is the last of training, best of validation, test of the "
    more = "evaluation, result what a script itself said at its end."
    yield from _values_table(f"{told}{more}", stage_rows(report))
    if len(report["runs"]) > 1:
        yield "<h2>Runs</h2>"
        yield from _values_table("What each run took, over all its attempts.", run_rows(report))


def _values_table(caption: str, rows: Sequence[_Values]) -> Iterator[str]:
    words = {"wall_s": "wall clock", "gpu_hours": "GPU-hours"}
    named = [
        {words.get(key, key): shown(key, value) for key, value in row.items()}
        for row in known_columns(rows)
    ]
    kinds = {key: "number" for key in named[0] if key not in _WORDS}
    yield from table_of(caption, named, kinds=kinds | dict.fromkeys(_WORDS[1:], "plain"))


def _curves(runs: Sequence[_Values], *, left_out: int) -> Iterator[str]:
    yield "<h2>Curves</h2>"
    figures = list(curves_of(runs))
    if not figures:
        yield "<p>No numbers were logged yet.</p>"
        return
    told = "Over all attempts; what was done twice counts once."
    if left_out:
        told += f" The first {len(runs)} runs are drawn, {left_out} more are in the table."
    yield f'<p class="soft">{told}{_marks_in_words(runs)}</p>'
    yield '<div class="curves">'
    yield from figures
    yield "</div>"


def _marks_in_words(runs: Sequence[_Values]) -> str:
    kinds = kinds_of_marks(runs)
    if not kinds:
        return ""
    if len(runs) > 1:
        return f" ▼ An attempt of the run ended: {marked(', '.join(words for _, words in kinds))}."
    told = ", ".join(
        f'<span class="key-mark {marked(kind)}">▼</span> {marked(words)}' for kind, words in kinds
    )
    return f" An attempt ended: {told}."


def _gantt(report: _Values, names: Sequence[str]) -> Iterator[str]:
    picture = gantt_of(report["timeline"], names, now=report["now"])
    yield "<h2>Plan and reality</h2>"
    if picture is None:
        yield "<p>Nothing has begun yet.</p>"
        return
    apart = " Each run is counted from its own beginning." if picture.is_apart else ""
    yield f'<figure class="gantt">\n{picture.svg}'
    yield (
        "<figcaption>Of each stage above the plan, below it what became of it; evaluations are "
        f"lighter, an upright line is an attempt cut short.{apart} Point at a bar for more."
        "</figcaption>\n</figure>"
    )


def _times(runs: Sequence[_Values]) -> Iterator[str]:
    yield "<h2>Where the time went</h2>"
    drawn = [(run, waterfall_of(run)) for run in runs]
    if len(runs) > 1 and (rows := ledger_rows(runs)):
        kinds = {run["experiment"]: "number" for run in runs}
        yield from table_of("Every second of the wall clock, over all attempts.", rows, kinds=kinds)
    yield '<div class="falls">'
    for run, picture in drawn:
        if picture is not None:
            wall, share = format_seconds(run["wall_s"]), goodput_of(run["ledger"])
            told = f"{wall}, {share}" if share else wall
            yield f'<figure class="times">\n<figcaption>{text_in(run["experiment"])}: {told}'
            yield f"</figcaption>\n{picture}\n</figure>"
    yield "</div>"
    if not any(picture for _, picture in drawn):
        yield "<p>Nothing to tell yet.</p>"


def _attempts(runs: Sequence[_Values]) -> Iterator[str]:
    yield "<h2>Attempts</h2>"
    for run in runs:
        if len(runs) > 1:
            yield f"<h3>{text_in(run['experiment'])}</h3>"
        if not run["story"]:
            yield "<p>None yet.</p>"
            continue
        yield '<ol class="attempts">'
        for attempt in run["story"]:
            where = " · ".join(str(attempt[k]) for k in ("job", "scheduler_job") if attempt[k])
            yield (
                f'<li value="{int(attempt["attempt"])}">{text_in(attempt["sentence"])} '
                f'<span class="soft">{text_in(where)}</span></li>'
            )
        yield "</ol>"


def _environment(runs: Sequence[_Values]) -> Iterator[str]:
    rows = environment_rows(runs)
    if rows:
        yield "<h2>Environment</h2>"
        yield from table_of("Of the first attempt of each run.", rows)


def _specs(runs: Sequence[_Values]) -> Iterator[str]:
    yield "<h2>Spec</h2>"
    known = [run for run in runs if run["spec"]]
    if rows := difference_rows(known):
        yield from table_of("Differing settings.", rows)
    elif len(known) > 1:
        yield "<p>They are the same.</p>"
    for name, run in zip(column_names(known), known, strict=True):
        is_open = " open" if len(known) == 1 else ""
        yield f"<details{is_open}><summary>{text_in(name)}</summary>"
        yield f"<pre>{text_in(spec_lines(run['spec']))}</pre></details>"
