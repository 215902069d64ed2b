"""A plan as bars over time: what a terminal's Gantt is drawn from.

Pure: from the values of `plan --json` to rows, one for each GPU of each job. What the plan leaves
open is worked out where it follows (a job begins when those before it have ended, a piece when its
lane is free) and stays open where it does not: a bar that is not known has no length of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

_FAR = 1.5
"""A limit or deadline further to the right than this times the work would leave it no room."""
_STEPS_S = (
    *(0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 15.0, 30.0),
    *(60.0, 120.0, 300.0, 600.0, 900.0, 1800.0),
    *(3600.0, 7200.0, 10800.0, 21600.0, 43200.0),
    *(86400.0, 172800.0, 432000.0, 864000.0),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A piece on one GPU."""

    number: int
    """Of its piece, in the plan's order: bars of one piece on several GPUs share it."""
    start_s: float
    end_s: float
    is_known: bool
    """Else nobody knows how long it takes: it is drawn up to what comes next."""
    piece: Mapping[str, Any]

    @property
    def evaluates(self) -> bool:
        return bool(self.piece["kind"] == "evaluate")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    gpu: int
    bars: tuple[Bar, ...]
    """In order of start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobChart:
    job: Mapping[str, Any]
    number: str
    """`01`, the end of its name."""
    start_s: float
    end_s: float
    limit_at_s: float | None
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    jobs: tuple[JobChart, ...]
    end_s: float
    """Of the axis."""
    deadline_s: float | None
    left_out: int
    """Pieces of which it is not even known when they begin."""

    @property
    def num_rows(self) -> int:
        return sum(len(job.rows) for job in self.jobs)

    @property
    def bars(self) -> Iterator[Bar]:
        return (bar for job in self.jobs for row in job.rows for bar in row.bars)

    def shows(self, at_s: float | None) -> bool:
        """Is this moment on the axis?"""
        return at_s is not None and 0 <= at_s <= self.end_s


@dataclass(slots=True)
class _Draft:
    """A piece whose place is sought."""

    number: int
    gpus: Sequence[int]
    start_s: float
    end_s: float | None
    piece: Mapping[str, Any]


def is_packed(plan: Mapping[str, Any]) -> bool:
    """Does a job have lanes side by side?"""
    return any(len(job["lanes"]) > 1 for job in plan["jobs"])


def number_of(job: Mapping[str, Any]) -> str:
    return str(job["name"]).rsplit("-", 1)[-1]


def chart_of(plan: Mapping[str, Any]) -> Chart | None:
    """None: not even one length or limit is known, so there is no scale."""
    drafts: list[tuple[Mapping[str, Any], float, list[_Draft]]] = []
    ends: dict[str, float] = {}
    first, left_out = 0, 0
    for job in plan["jobs"]:
        start_s = _start_of(job, ends)
        placed = list(_place(job, start_s, first))
        pieces = sum(len(lane["stages"]) for lane in job["lanes"])
        first, left_out = first + pieces, left_out + pieces - len(placed)
        drafts.append((job, start_s, placed))
        ends[job["name"]] = _end_of(job, start_s, placed)
    end_s = max(ends.values(), default=0.0)
    if not end_s > 0:
        return None
    jobs = [_chart_job(job, start_s, placed, end_s) for job, start_s, placed in drafts]
    deadline_s = plan["deadline_s"]
    marks = [deadline_s, *(job.limit_at_s for job in jobs)]
    near = [at for at in marks if at is not None and at <= end_s * _FAR]
    return Chart(
        jobs=tuple(jobs), end_s=max([end_s, *near]), deadline_s=deadline_s, left_out=left_out
    )


def _start_of(job: Mapping[str, Any], ends: Mapping[str, float]) -> float:
    if job["start_s"] is not None:
        return float(job["start_s"])
    return max((ends[name] for name in job["after"] if name in ends), default=0.0)


def _end_of(job: Mapping[str, Any], start_s: float, drafts: Sequence[_Draft]) -> float:
    """Of what is known; a job whose last piece on a GPU has no known end lasts up to its limit."""
    ends = [draft.start_s if draft.end_s is None else draft.end_s for draft in drafts]
    last = {gpu: draft for draft in sorted(drafts, key=_order) for gpu in draft.gpus}
    if job["limit_s"] is not None and any(draft.end_s is None for draft in last.values()):
        ends.append(start_s + job["limit_s"])
    return max([start_s, *ends])


def _place(job: Mapping[str, Any], start_s: float, first: int) -> Iterator[_Draft]:
    number = first
    for lane in job["lanes"]:
        free: float | None = start_s
        for piece in lane["stages"]:
            at = piece["start_s"] if piece["start_s"] is not None else free
            long = piece["expected_s"]
            free = None if at is None or long is None else at + long
            if at is not None:
                yield _Draft(number, lane["gpus"], at, free, piece)
            number += 1


def _chart_job(
    job: Mapping[str, Any], start_s: float, drafts: Sequence[_Draft], end_s: float
) -> JobChart:
    limit_at = None if job["limit_s"] is None else start_s + job["limit_s"]
    open_end = end_s if limit_at is None else min(limit_at, end_s)
    gpus = sorted({gpu for lane in job["lanes"] for gpu in lane["gpus"]} | set(range(job["gpus"])))
    rows = tuple(
        Row(gpu=gpu, bars=tuple(_bars([d for d in drafts if gpu in d.gpus], open_end)))
        for gpu in gpus
    )
    ends = [bar.end_s for row in rows for bar in row.bars]
    return JobChart(
        job=job,
        number=number_of(job),
        start_s=start_s,
        end_s=max(ends, default=start_s),
        limit_at_s=limit_at,
        rows=rows,
    )


def _order(draft: _Draft) -> tuple[float, int]:
    return (draft.start_s, draft.number)


def _bars(drafts: Sequence[_Draft], open_end: float) -> Iterator[Bar]:
    """What is not known ends where the next one on this GPU begins."""
    ordered = sorted(drafts, key=_order)
    nexts = [*(draft.start_s for draft in ordered[1:]), open_end]
    for draft, following in zip(ordered, nexts, strict=False):
        end = draft.end_s if draft.end_s is not None else max(following, draft.start_s)
        yield Bar(
            number=draft.number,
            start_s=draft.start_s,
            end_s=end,
            is_known=draft.end_s is not None,
            piece=draft.piece,
        )


def cut_rows(chart: Chart, most: int) -> tuple[Chart, int]:
    """The first rows, and how many are left out."""
    jobs, left = [], most
    for job in chart.jobs:
        if left > 0:
            jobs.append(replace(job, rows=job.rows[:left]))
            left -= len(job.rows)
    return replace(chart, jobs=tuple(jobs)), max(0, chart.num_rows - most)


def ticks(end_s: float, *, most: int) -> list[float]:
    """Round moments from 0 on; at most so many, but two where that is less."""
    steps, gaps = [*_STEPS_S], max(1, most - 1)
    while end_s / steps[-1] > gaps:
        steps.append(steps[-1] * 2)
    step = next(step for step in steps if end_s / step <= gaps)
    return [step * n for n in range(int(end_s / step + 1e-9) + 1)]


def place_in_cells(
    spans: Sequence[tuple[float, float]], *, width: int, end_s: float
) -> list[tuple[int, int] | None]:
    """The cells [from, to) of each span, in their order, of `width` cells for 0 … `end_s`.

    To scale, but each has a cell at least and nobody shares one: short ones push their neighbours.
    Where there are more spans than cells the shortest get none.
    """
    order = sorted(range(len(spans)), key=lambda at: spans[at][0] - spans[at][1])
    kept = sorted(order[:width])
    ends: list[tuple[int, int]] = []
    taken = 0
    for start, end in (spans[at] for at in kept):
        left = max(taken, cell_of(start, width=width, end_s=end_s))
        taken = max(left + 1, cell_of(end, width=width, end_s=end_s))
        ends.append((left, taken))
    free = width
    for at in reversed(range(len(ends))):
        right = min(ends[at][1], free)
        free = min(ends[at][0], right - 1)
        ends[at] = (free, right)
    cells: list[tuple[int, int] | None] = [None] * len(spans)
    for at, cell in zip(kept, ends, strict=True):
        cells[at] = cell
    return cells


def cell_of(at_s: float, *, width: int, end_s: float) -> int:
    """The border between cells that is nearest to a moment: 0 … `width`."""
    return min(width, max(0, int(at_s / end_s * width + 0.5)))
