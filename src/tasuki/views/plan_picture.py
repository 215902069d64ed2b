"""The Gantt of plan_page.py as SVG: lanes of each job over time, limits, the deadline.

Pure. Places are shares of the width, so the picture fits any window without a script; what a bar
is stands in its title. Colours and sizes of letters are the page's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tasuki.units import format_seconds
from tasuki.views.chart import Bar, Chart, JobChart, chart_of, ticks
from tasuki.views.gantt import whole_name
from tasuki.views.marks import marked, without_paths
from tasuki.views.pieces import batch_of, steps_of
from tasuki.views.plan_facts import pieces_of, share

COLOURS = 8
_ROW = 26
_BAR = 20
_HEAD = 34
_TOP = 44
_MOST_TICKS = 8
_USUAL_WIDTH = 900
"""Of the axis in pixels, by which it is judged whether a name has room in its bar."""
_LETTER = 7.5
_LEAST = 0.15
"""Percent: what lasts no time at all can still be pointed at."""


def picture_of(plan: Mapping[str, Any], *, unit: str = "GPU") -> str | None:
    """None: nothing is known of any time."""
    chart = chart_of(plan)
    if chart is None:
        return None
    pieces = pieces_of(plan)
    names = list(dict.fromkeys(piece["experiment"] for piece in pieces))
    draw = _Drawing(
        chart=chart,
        unit=unit,
        colours={name: at % COLOURS for at, name in enumerate(names)},
        several=len(names) > 1,
    )
    return "\n".join(draw.lines(plan))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Drawing:
    chart: Chart
    unit: str
    colours: Mapping[str, int]
    several: bool

    def lines(self, plan: Mapping[str, Any]) -> Iterator[str]:
        chart = self.chart
        height = _TOP + sum(_HEAD + _ROW * len(job.rows) for job in chart.jobs) + 8
        yield (
            f'<svg xmlns="http://www.w3.org/2000/svg" class="gantt" height="{height}" role="img" '
            'aria-labelledby="gantt-title gantt-desc">'
        )
        yield f'<title id="gantt-title">Plan {marked(plan["id"])}: what runs where and when</title>'
        yield f'<desc id="gantt-desc">{self._description()}</desc>'
        yield (
            '<defs><pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" '
            'patternTransform="rotate(45)"><rect class="stripe" width="2.5" height="6"/></pattern>'
            "</defs>"
        )
        yield from self._axis(height)
        top = _TOP
        for job in chart.jobs:
            yield from self._job(job, top)
            top += _HEAD + _ROW * len(job.rows)
        yield from self._deadline(height)
        yield "</svg>"

    def _description(self) -> str:
        jobs, rows = len(self.chart.jobs), self.chart.num_rows
        return (
            f"{jobs} job{'s' if jobs != 1 else ''}, {rows} {self.unit}s, from the beginning up to "
            f"{format_seconds(self.chart.end_s)}. The table of pieces says the same."
        )

    def _at(self, at_s: float) -> float:
        """In percent of the axis."""
        return min(100.0, max(0.0, 100 * at_s / self.chart.end_s))

    def _axis(self, height: int) -> Iterator[str]:
        for at_s in ticks(self.chart.end_s, most=_MOST_TICKS):
            x, word = self._at(at_s), format_seconds(at_s) if at_s else "0"
            anchor = "end" if x > 97 else "middle" if x else "start"
            yield f'<line class="tick" x1="{x:.3f}%" x2="{x:.3f}%" y1="{_TOP - 6}" y2="{height}"/>'
            yield (
                f'<text class="time" x="{x:.3f}%" y="{_TOP - 12}" text-anchor="{anchor}">'
                f"{word}</text>"
            )

    def _job(self, job: JobChart, top: int) -> Iterator[str]:
        yield f'<text class="job" x="0" y="{top + 20}">{marked(self._head(job))}</text>'
        first = top + _HEAD - 6
        for at, row in enumerate(job.rows):
            y = first + at * _ROW
            name = f"{self.unit} {row.gpu}"
            yield f'<text class="lane" x="-10" y="{y + 15}" text-anchor="end">{name}</text>'
            x, width = self._at(job.start_s), self._at(job.end_s) - self._at(job.start_s)
            yield f'<rect class="idle" x="{x:.3f}%" y="{y}" width="{width:.3f}%" height="{_BAR}"/>'
            for bar in row.bars:
                yield self._bar(bar, y)
        if self.chart.shows(job.limit_at_s):
            assert job.limit_at_s is not None
            x, bottom = self._at(job.limit_at_s), first + _ROW * len(job.rows) - 4
            yield (
                f'<line class="limit" x1="{x:.3f}%" x2="{x:.3f}%" y1="{first - 4}" y2="{bottom}">'
                f"<title>limit of job {marked(job.number)}</title></line>"
            )

    def _head(self, job: JobChart) -> str:
        words = [f"job {job.number}"]
        if job.job["limit_s"] is not None:
            far = "" if self.chart.shows(job.limit_at_s) else " (off the chart)"
            words.append(f"limit {format_seconds(job.job['limit_s'])}{far}")
        return " · ".join([*words, f"useful time {share(job.job['useful'])}"])

    def _bar(self, bar: Bar, y: int) -> str:
        x = self._at(bar.start_s)
        width = max(_LEAST, self._at(bar.end_s) - x)
        kind = "evaluate" if bar.evaluates else "train"
        known = "" if bar.is_known else " unknown"
        colour = self.colours[bar.piece["experiment"]]
        hatch = '<rect fill="url(#hatch)" width="100%" height="100%"/>' if bar.evaluates else ""
        name = self._name(bar, width / 100 * _USUAL_WIDTH)
        label = f'<text x="6" y="14">{marked(name)}</text>' if name else ""
        return (
            f'<svg class="bar {kind} c{colour}{known}" x="{x:.3f}%" y="{y}" width="{width:.3f}%" '
            f'height="{_BAR}"><title>{marked(self._title(bar))}</title>'
            f'<rect class="fill" width="100%" height="100%"/>{hatch}'
            f'<rect class="edge" width="2" height="100%"/>{label}</svg>'
        )

    def _name(self, bar: Bar, pixels: float) -> str:
        """The longest that has room; the colour tells no more than the experiment either."""
        piece, verb = bar.piece, "eval " if bar.evaluates else ""
        names = [whole_name(piece, several=self.several)]
        names.append(f"{verb}{piece['experiment'] if self.several else ''}".strip())
        fitting = [name for name in names if len(name) * _LETTER + 8 <= pixels]
        return fitting[0] if fitting else ""

    def _title(self, bar: Bar) -> str:
        piece = bar.piece
        verb = "" if bar.evaluates else f"{piece['kind']} "
        words = [f"{verb}{whole_name(piece, several=True)}"]
        words.append(f"from {format_seconds(bar.start_s) if bar.start_s else '0'}")
        if piece["expected_s"] is None:
            words.append("length not known")
        else:
            words.append(f"{format_seconds(piece['expected_s'])}, {piece['source']}")
        if steps := steps_of(piece):
            words.append(f"steps {steps}")
        if batch := batch_of(piece):
            words.append(f"batch {batch}")
        return without_paths("\n".join(words))

    def _deadline(self, height: int) -> Iterator[str]:
        at_s = self.chart.deadline_s
        if at_s is None or not self.chart.shows(at_s):
            return
        x = self._at(at_s)
        anchor = "end" if x > 50 else "start"
        yield f'<line class="deadline" x1="{x:.3f}%" x2="{x:.3f}%" y1="12" y2="{height}"/>'
        yield (
            f'<text class="deadline" x="{x:.3f}%" dx="{-6 if x > 50 else 6}" y="14" '
            f'text-anchor="{anchor}">deadline {format_seconds(at_s)}</text>'
        )
