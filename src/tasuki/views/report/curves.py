"""Curves of a report as SVG: one picture per metric, all runs in it, ends of attempts marked. Pure.

As wide as the window without a script: lines lie in a picture of 1000 × 1000 that is stretched,
letters and marks beside it at shares of the width.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tasuki.views.marks import marked
from tasuki.views.report.scale import Scale, scale_of
from tasuki.views.text import number

COLOURS = 8
_HEIGHT = 240
_TOP = 16
_FIRST = ("loss",)
_LAST = ("lr", "grad_norm", "samples_per_sec", "tokens_per_sec", "memory_allocated_gb")
_FEW = 60
"""Points that are shown as such."""
_CAUSES = {
    "preempted": "preempted",
    "limit": "at its time limit",
    "lost": "a part of its job died",
    "died": "without a word",
}
_KINDS = frozenset({"preempted", "limit", "cancelled", "failed", "lost"})
_Values = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _Line:
    run: str
    split: str
    colour: int
    steps: Sequence[int]
    values: Sequence[float | None]


def curves_of(runs: Sequence[_Values]) -> Iterator[str]:
    """A figure per metric; nothing where nobody logged a number."""
    keys = {one["key"] for run in runs for one in run["curves"].get("series", ())}
    for number_, key in enumerate(sorted(keys, key=_rank)):
        yield from _figure(key, runs, names_stages=number_ == 0)


def _rank(key: str) -> tuple[int, str]:
    if key in _FIRST:
        return 0, key
    return (2 + _LAST.index(key), key) if key in _LAST else (1, key)


def _lines(key: str, runs: Sequence[_Values]) -> list[_Line]:
    several = len(runs) > 1
    found = []
    for at, run in enumerate(runs):
        for one in run["curves"].get("series", ()):
            if one["key"] == key:
                colour = at if several else 0 if one["split"] == "train" else 2
                name, split = run["experiment"], one["split"]
                found.append(_Line(name, split, colour % COLOURS, one["steps"], one["values"]))
    return found


def _figure(key: str, runs: Sequence[_Values], *, names_stages: bool) -> Iterator[str]:
    lines = _lines(key, runs)
    y = scale_of((v for line in lines for v in line.values), may_be_log="loss" in key)
    steps = [
        step for run in runs for one in run["curves"].get("series", ()) for step in one["steps"]
    ]
    if y is None or not steps:
        return
    marks = [mark["step"] for run in runs for mark in run["curves"].get("marks", ())]
    first, far = min(steps), max(steps)
    last = max([far, *(mark for mark in marks if mark is not None and mark <= 1.25 * far)])
    x = Scale(first, last if last > first else first + 1)
    height = _TOP + _HEIGHT + (44 if names_stages and len(runs) == 1 else 26)
    yield f'<figure class="curve">\n{_caption(key, lines, len(runs) > 1)}'
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="curve" height="{height}" role="img" '
        f'aria-label="{marked(_description(key, lines))}">'
    )
    yield from _axes(x, y)
    if len(runs) == 1:
        yield from _stages(runs[0]["curves"], x, are_named=names_stages)
    box = 'viewBox="0 0 1000 1000" preserveAspectRatio="none"'
    yield f'<svg y="{_TOP}" width="100%" height="{_HEIGHT}" {box}>'
    for line in lines:
        yield from _polylines(line, x, y)
    yield "</svg>"
    for line in lines:
        yield from _points(line, x, y)
    for at, run in enumerate(runs):
        for mark in run["curves"].get("marks", ()):
            yield from _mark(run, mark, x, at if len(runs) > 1 else None)
    yield "</svg>\n</figure>"


def _caption(key: str, lines: Sequence[_Line], several: bool) -> str:
    keys = "".join(
        f'<span class="c{line.colour}"><i class="line{" dashed" if _is_dashed(line) else ""}"></i>'
        f"{marked(_label(line, several))}</span>"
        for line in lines
    )
    scale = ' <span class="soft">steps →</span>'
    return f"<figcaption><b>{marked(key)}</b>{keys}{scale}</figcaption>"


def _label(line: _Line, several: bool) -> str:
    if not several:
        return line.split
    return f"{line.run} {line.split}" if _is_dashed(line) else line.run


def _is_dashed(line: _Line) -> bool:
    return line.split != "train"


def _description(key: str, lines: Sequence[_Line]) -> str:
    told = []
    for line in lines:
        known = [value for value in line.values if value is not None]
        if known:
            told.append(f"{line.run} {line.split} from {number(known[0])} to {number(known[-1])}")
    return f"{key} over steps: {'; '.join(told)}"


def _axes(x: Scale, y: Scale) -> Iterator[str]:
    bottom = _TOP + _HEIGHT
    for value in y.ticks(6):
        place = bottom - _HEIGHT * y.at(value)
        yield f'<line class="tick" x1="0" x2="100%" y1="{place:.1f}" y2="{place:.1f}"/>'
        yield (
            f'<text class="time" x="-10" y="{place + 4:.1f}" text-anchor="end">'
            f"{number(value)}</text>"
        )
    for value in x.ticks(8):
        share = 100 * x.at(value)
        anchor = "end" if share > 97 else "start" if share < 2 else "middle"
        yield f'<line class="tick" x1="{share:.2f}%" x2="{share:.2f}%" y1="{_TOP}" y2="{bottom}"/>'
        yield (
            f'<text class="time" x="{share:.2f}%" y="{bottom + 18}" text-anchor="{anchor}">'
            f"{value:,.0f}</text>"
        )


def _stages(curves: _Values, x: Scale, *, are_named: bool) -> Iterator[str]:
    known = [stage for stage in curves.get("stages", ()) if stage["first_step"] is not None]
    for stage in known if len(known) > 1 else ():
        share = 100 * x.at(stage["first_step"])
        if not 0 <= share < 100:
            continue
        ends = f'y1="{_TOP}" y2="{_TOP + _HEIGHT}"'
        yield f'<line class="stage" x1="{share:.2f}%" x2="{share:.2f}%" {ends}/>'
        if are_named:
            yield (
                f'<text class="stage" x="{share:.2f}%" dx="5" y="{_TOP + _HEIGHT + 38}">'
                f"{marked(stage['name'])}</text>"
            )


def _polylines(line: _Line, x: Scale, y: Scale) -> Iterator[str]:
    """One for each piece without a gap."""
    dashed = " dashed" if _is_dashed(line) else ""
    for piece in _pieces(line):
        points = " ".join(f"{1000 * x.at(s):.1f},{1000 - 1000 * y.at(v):.1f}" for s, v in piece)
        yield f'<polyline class="line c{line.colour}{dashed}" points="{points}"/>'


def _pieces(line: _Line) -> Iterator[list[tuple[int, float]]]:
    piece: list[tuple[int, float]] = []
    for step, value in zip(line.steps, line.values, strict=True):
        if value is not None:
            piece.append((step, value))
        elif piece:
            yield piece
            piece = []
    if piece:
        yield piece


def _points(line: _Line, x: Scale, y: Scale) -> Iterator[str]:
    known = [(s, v) for s, v in zip(line.steps, line.values, strict=True) if v is not None]
    if not _is_dashed(line) or len(known) > _FEW:
        return
    for step, value in known:
        yield (
            f'<circle class="point c{line.colour}" cx="{100 * x.at(step):.2f}%" '
            f'cy="{_TOP + _HEIGHT - _HEIGHT * y.at(value):.1f}" r="3">'
            f"<title>step {step:,}: {number(value)}</title></circle>"
        )


def _mark(run: _Values, mark: _Values, x: Scale, at: int | None) -> Iterator[str]:
    if mark["step"] is None or not 0 <= x.at(mark["step"]) <= 1:
        return
    share = 100 * x.at(mark["step"])
    cause = str(mark["cause"])
    kind = cause if cause in _KINDS else "other"
    own = "" if at is None else f" c{at % COLOURS} own"
    words = f"{run['experiment']}: attempt {mark['attempt']} ended at step {mark['step']:,}"
    place = f'x="{share:.2f}%" y="{_TOP}" width="1" height="{_HEIGHT}" overflow="visible"'
    yield (
        f'<svg class="mark {kind}{own}" {place}><title>{marked(words)}: '
        f'{marked(_CAUSES.get(cause, cause))}</title><line x1="0" x2="0" y1="0" y2="100%"/>'
        '<path d="M-5 -9h10l-5 8z"/></svg>'
    )


def kinds_of_marks(runs: Sequence[_Values]) -> list[tuple[str, str]]:
    """(class, words) of the ends that are marked."""
    causes = dict.fromkeys(
        str(mark["cause"]) for run in runs for mark in run["curves"].get("marks", ())
    )
    return [(c if c in _KINDS else "other", _CAUSES.get(c, c)) for c in causes]
