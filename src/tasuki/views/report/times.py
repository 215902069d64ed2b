"""Plan beside reality, and where the time went, as SVG. Pure; places are shares of the width."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tasuki.units import format_seconds
from tasuki.views.chart import ticks
from tasuki.views.marks import marked
from tasuki.views.report.curves import COLOURS
from tasuki.views.text import NOT_RUNNING, was_queued

_Values = Mapping[str, Any]
_ROW = 56
_TOP = 30
_FAR = 3.0
PARTS = {
    "queue": "queue",
    "start": "start",
    "restore": "restore",
    "data_wait": "data wait",
    "step": "steps",
    "recomputed": "steps done again",
    "validate": "validation",
    "save": "saves",
    "evaluate": "evaluation",
    "handover": "handover",
    "other": "other",
}


@dataclass(frozen=True, slots=True)
class _Piece:
    begin: float
    end: float
    kind: str
    words: str
    cause: str | None = None
    """Why it was cut short, if it was."""


@dataclass(frozen=True, slots=True)
class _Row:
    run: str
    name: str
    colour: int
    planned: list[_Piece]
    actual: list[_Piece]

    @property
    def pieces(self) -> list[_Piece]:
        return [*self.planned, *self.actual]


@dataclass(frozen=True, slots=True)
class Gantt:
    svg: str
    is_apart: bool
    """Is each run drawn from its own beginning?"""


def gantt_of(timeline: _Values, names: Sequence[str], *, now: float) -> Gantt | None:
    """One row per stage: the plan above, each attempt below. None: nothing has a time yet."""
    rows = [row for row in _rows(timeline, names, now) if row.pieces]
    if not rows:
        return None
    begins = {
        name: min(p.begin for r in rows if r.run == name for p in r.pieces) for name in _runs(rows)
    }
    ends = {name: max(p.end for r in rows if r.run == name for p in r.pieces) for name in begins}
    first, last = min(begins.values()), max(ends.values())
    # Runs of other days would be specks: then each is drawn from its own beginning.
    is_apart = last - first > _FAR * sum(ends[name] - begins[name] for name in begins)
    origins = begins if is_apart else dict.fromkeys(begins, first)
    deadline = timeline.get("deadline_at")
    deadline_s = None if deadline is None or is_apart else deadline - first
    span = max(*(ends[name] - origins[name] for name in begins), deadline_s or 0.0, 1e-3)
    return Gantt("\n".join(_drawn(rows, origins, span, deadline_s)), is_apart)


def _runs(rows: Sequence[_Row]) -> list[str]:
    return list(dict.fromkeys(row.run for row in rows))


def _rows(timeline: _Values, names: Sequence[str], now: float) -> list[_Row]:
    keys = dict.fromkeys(
        (str(one["experiment"]), str(one["stage"]))
        for one in (*timeline["planned"], *timeline["actual"])
    )
    found = []
    for name, stage in sorted(keys, key=lambda key: names.index(key[0]) if key[0] in names else 0):
        own = [
            o for o in timeline["planned"] if (o["experiment"], str(o["stage"])) == (name, stage)
        ]
        done = [
            o for o in timeline["actual"] if (o["experiment"], str(o["stage"])) == (name, stage)
        ]
        label = f"{name} {stage}" if len(names) > 1 else stage
        colour = names.index(name) % COLOURS if name in names else 0
        planned = list(_planned(own, timeline["planned_from"]))
        found.append(_Row(name, label, colour, planned, [_actual(one, now) for one in done]))
    return found


def _planned(pieces: Sequence[_Values], origin: float | None) -> Iterator[_Piece]:
    for one in pieces:
        begins, ends = one["begins_s"], one["ends_s"]
        if origin is not None and begins is not None and ends is not None:
            words = f"planned: {one['kind']} {one['stage']}, {format_seconds(ends - begins)}"
            yield _Piece(origin + begins, origin + ends, str(one["kind"]), words)


def _actual(one: _Values, now: float) -> _Piece:
    end = one["ended_at"] if one["ended_at"] is not None else max(now, one["began_at"])
    is_cut = not one["is_running"] and one["ending"] != "done"
    cause = one["cause"] if one["cause"] not in (None, "none") else one["ending"]
    how = (
        "runs" if one["is_running"] else f"ended: {cause or 'without a word'}" if is_cut else "done"
    )
    words = (
        f"attempt {one['attempt']}: {one['kind']} {one['stage']}, "
        f"{format_seconds(end - one['began_at'])}, {how}"
    )
    return _Piece(one["began_at"], end, str(one["kind"]), words, str(cause) if is_cut else None)


def _drawn(
    rows: Sequence[_Row], origins: Mapping[str, float], span: float, deadline_s: float | None
) -> Iterator[str]:
    height = _TOP + _ROW * len(rows) + 4
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="gantt" height="{height}" role="img" '
        'aria-label="Planned and real times of each stage; the attempts below tell the same">'
    )
    for tick in ticks(span, most=7):
        x = 100 * tick / span
        anchor = "end" if x > 95 else "middle" if x else "start"
        yield f'<line class="tick" x1="{x:.2f}%" x2="{x:.2f}%" y1="{_TOP - 8}" y2="{height}"/>'
        word = format_seconds(tick) if tick else "0"
        yield f'<text class="time" x="{x:.2f}%" y="14" text-anchor="{anchor}">{word}</text>'
    for number, row in enumerate(rows):
        y, origin = _TOP + number * _ROW, origins[row.run]
        yield f'<text class="job" x="0" y="{y + 12}">{marked(row.name)}</text>'
        for piece in row.planned:
            yield _bar(piece, f"planned c{row.colour}", (origin, span), y + 19, 9)
        for piece in row.actual:
            yield _bar(piece, f"actual c{row.colour} {piece.kind}", (origin, span), y + 31, 15)
            if piece.cause is not None:
                x = 100 * (piece.end - origin) / span
                yield (
                    f'<rect class="cut {marked(piece.cause)}" x="{x:.3f}%" y="{y + 28}" width="3" '
                    f'height="21"><title>{marked(piece.words)}</title></rect>'
                )
    if deadline_s is not None:
        x = 100 * deadline_s / span
        yield (
            f'<line class="deadline" x1="{x:.2f}%" x2="{x:.2f}%" y1="{_TOP - 8}" y2="{height}">'
            "<title>deadline</title></line>"
        )
    yield "</svg>"


def _bar(piece: _Piece, kind: str, axis: tuple[float, float], y: int, tall: int) -> str:
    origin, span = axis
    x, width = 100 * (piece.begin - origin) / span, 100 * (piece.end - piece.begin) / span
    return (
        f'<rect class="{marked(kind)}" x="{x:.3f}%" y="{y}" width="{max(0.25, width):.3f}%" '
        f'height="{tall}" rx="3"><title>{marked(piece.words)}</title></rect>'
    )


def part_names(runs: Sequence[_Values]) -> Mapping[str, str]:
    """What each part is called, where all that is shown is of these runs."""
    is_queued = any(was_queued(run.get("story", ())) for run in runs)
    return PARTS if is_queued else {**PARTS, "queue": NOT_RUNNING}


def waterfall_of(run: _Values) -> str | None:
    """Each part begins where the one before it ended."""
    ledger, names = run["ledger"], part_names([run])
    wall = ledger.get("wall_s")
    parts = [(part, s) for part, s in ledger.get("parts", {}).items() if s >= 0.005]
    if not wall or not parts:
        return None
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="waterfall" height="{len(parts) * 24 + 6}" '
        f'role="img" aria-label="Where the time of {marked(run["experiment"])} went">'
    )
    lines, before = [head], 0.0
    for number, (part, seconds) in enumerate(parts):
        label = names.get(part, part)
        lines.append(_fall((part, label), seconds, before, wall, number * 24 + 3))
        before += seconds
    return "\n".join([*lines, "</svg>"])


def _fall(named: tuple[str, str], seconds: float, before: float, wall: float, y: int) -> str:
    part, label = named
    x, width = 100 * before / wall, 100 * seconds / wall
    # Behind its bar where there is room, else before it, else inside of it.
    side, at, dx, anchor = "", x + width, 8, "start"
    if x + width > 76:
        side, at, dx, anchor = ("", x, -8, "end") if x >= 24 else (" inside", x + 1, 6, "start")
    return (
        f'<text class="lane" x="-12" y="{y + 14}" text-anchor="end">{marked(label)}'
        f'</text><rect class="part {marked(part)}" x="{x:.3f}%" y="{y + 2}" '
        f'width="{max(0.3, width):.3f}%" height="15" rx="3"/>'
        f'<text class="told{side}" x="{at:.3f}%" dx="{dx}" y="{y + 14}" text-anchor="{anchor}">'
        f"{format_seconds(seconds)} · {seconds / wall:.0%}</text>"
    )
