"""A packed plan as a Gantt in the terminal: a row for each GPU, a bar for each piece.

Without colour it says the same: bars begin with an edge, evaluations are shaded, idle time is
dotted. Where the encoding has no such signs they are ASCII.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from string import ascii_letters
from typing import Any

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from tasuki.units import format_seconds
from tasuki.views.chart import (
    Bar,
    Chart,
    JobChart,
    Row,
    cell_of,
    chart_of,
    cut_rows,
    place_in_cells,
    ticks,
)
from tasuki.views.text import neutral, wrap

_MOST_ROWS = 32
_BETWEEN_TICKS = 3
_LEAST_WIDTH = 8
_COLOURS = ("cyan", "green", "yellow", "magenta", "bright_blue", "bright_red")
"""On which black can be read."""


@dataclass(frozen=True, slots=True)
class _Signs:
    edge: str
    train: str
    evaluate: str
    unknown: str
    idle: str
    limit: str
    deadline: str


_SIGNS = _Signs("┣", "━", "░", "?", "·", "│", "┇")
_ASCII = _Signs("[", "=", "~", "?", ".", "|", "!")


@dataclass(slots=True)
class _Legend:
    """Letters for bars too short for a name, in the order in which they are met."""

    kinds: Counter[tuple[str, str]]
    """How many pieces there are of each experiment and kind."""
    letters: dict[int, str] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    unnamed: set[int] = field(default_factory=set)
    hidden: set[int] = field(default_factory=set)

    @property
    def several(self) -> bool:
        return len({experiment for experiment, _ in self.kinds}) > 1

    def name(self, bar: Bar, room: int) -> str:
        """The longest that leaves a cell to see what is done; else a letter."""
        for name in self._names(bar):
            if cell_len(name) < room:
                return name
        if bar.number not in self.letters:
            if len(self.letters) == len(ascii_letters):
                self.unnamed.add(bar.number)
                return ""
            letter = ascii_letters[len(self.letters)]
            self.letters[bar.number] = letter
            self.names[letter] = whole_name(bar.piece, several=self.several)
        return self.letters[bar.number]

    def _names(self, bar: Bar) -> Iterator[str]:
        """From the whole name to the shortest that nobody else here has."""
        yield whole_name(bar.piece, several=self.several)
        if bar.evaluates:
            yield f"eval {whole_name({**bar.piece, 'kind': ''}, several=self.several)}"
        if not self.several:
            return
        key = (bar.piece["experiment"], bar.piece["kind"])
        if self.kinds[key] == 1:
            name = one_line(bar.piece["experiment"])
            yield from (f"eval {name}", name) if bar.evaluates else (name,)


def one_line(text: str) -> str:
    """A name from wherever, that cannot break a row."""
    return " ".join(neutral(text).split())


def whole_name(piece: Mapping[str, Any], *, several: bool) -> str:
    where = f"{piece['experiment']}/" if several else ""
    verb = "evaluate " if piece["kind"] == "evaluate" else ""
    return one_line(f"{verb}{where}{piece['stage']}")


def show_gantt(plan: Mapping[str, Any], console: Console, *, unit: str = "GPU") -> None:
    """`unit` is what a row is: a GPU, or a slot of the CPU."""
    for line in gantt_lines(plan, console, unit=unit):
        console.print(line, highlight=False, soft_wrap=True)


def gantt_lines(plan: Mapping[str, Any], console: Console, *, unit: str = "GPU") -> Iterator[Text]:
    chart = chart_of(plan)
    if chart is None:
        yield Text("no picture: of none of these it is known how long it takes")
        return
    signs = _ASCII if console.options.ascii_only else _SIGNS
    pieces = [p for job in plan["jobs"] for lane in job["lanes"] for p in lane["stages"]]
    colours = _colours(pieces)
    legend = _Legend(Counter((piece["experiment"], piece["kind"]) for piece in pieces))
    shown, more = cut_rows(chart, _MOST_ROWS)
    label = max(len(f"{unit} {row.gpu}") for job in shown.jobs for row in job.rows) + 1
    width = max(_LEAST_WIDTH, console.width - label - 1)
    margin = " " * label
    yield Text(margin + _axis(chart.end_s, width))
    for job in shown.jobs:
        yield Text(wrap(_head(job, chart, unit), console.width), style="bold")
        for row in job.rows:
            paint = _Paint(signs=signs, width=width, legend=legend, colours=colours)
            line = Text().append(f"{unit} {row.gpu}".ljust(label), style="dim")
            yield line.append_text(paint.row(row, job, chart))
    if more:
        dots = "..." if signs is _ASCII else "…"
        yield Text(f"{dots} and {more} more lane{'s' if more > 1 else ''}")
    if chart.shows(chart.deadline_s):
        yield Text(margin + _deadline(chart, width, signs))
    yield from _explain(chart, signs, legend, console.width)


def _colours(pieces: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    names = dict.fromkeys(piece["experiment"] for piece in pieces)
    return {name: _COLOURS[at % len(_COLOURS)] for at, name in enumerate(names)}


@dataclass(slots=True, kw_only=True)
class _Paint:
    """One row, cell by cell."""

    signs: _Signs
    width: int
    legend: _Legend
    colours: Mapping[str, str]

    def row(self, row: Row, job: JobChart, chart: Chart) -> Text:
        """A cell more than the axis has: a limit may stand at its very end."""
        cells = [(" ", "")] * (self.width + 1)
        first, last = self._cell(job.start_s, chart), self._cell(job.end_s, chart)
        cells[first:last] = [(self.signs.idle, "dim")] * (last - first)
        if chart.deadline_s is not None and chart.shows(chart.deadline_s):
            cells[self._cell(chart.deadline_s, chart)] = (self.signs.deadline, "bold red")
        if job.limit_at_s is not None and chart.shows(job.limit_at_s):
            cells[self._cell(job.limit_at_s, chart)] = (self.signs.limit, "yellow")
        spans = [(bar.start_s, bar.end_s) for bar in row.bars]
        places = place_in_cells(spans, width=self.width, end_s=chart.end_s)
        for bar, place in zip(row.bars, places, strict=True):
            if place is None:
                self.legend.hidden.add(bar.number)
                continue
            left, right = place
            style = self._style(bar)
            cells[left:right] = [(char, style) for char in self._bar(bar, right - left)]
        line = Text()
        for style, chars in groupby(cells, key=lambda cell: cell[1]):
            line.append("".join(char for char, _ in chars), style=style)
        line.rstrip()
        return line

    def _cell(self, at_s: float, chart: Chart) -> int:
        return cell_of(at_s, width=self.width, end_s=chart.end_s)

    def _style(self, bar: Bar) -> str:
        colour = self.colours[bar.piece["experiment"]]
        return colour if bar.evaluates else f"black on {colour}"

    def _bar(self, bar: Bar, width: int) -> list[str]:
        """As many characters as cells; a wide character stands with an empty one."""
        fill = self.signs.evaluate if bar.evaluates else self.signs.train
        if not bar.is_known:
            fill = self.signs.unknown
        name = self.legend.name(bar, max(0, width - 1))
        if width == 1:
            return [name or self.signs.edge]
        chars = [self.signs.edge]
        for char in name:
            chars += [char, *[""] * (cell_len(char) - 1)] if cell_len(char) else []
        return (chars + [fill] * width)[:width]


def _axis(end_s: float, width: int) -> str:
    """Moments in round units, as many as have room."""
    widest = len(format_seconds(end_s)) + 1
    moments = ticks(end_s, most=max(2, width // (widest + _BETWEEN_TICKS)))
    line = ""
    for at in moments:
        word = format_seconds(at) if at else "0"
        cell = cell_of(at, width=width, end_s=end_s)
        if cell + len(word) > width + 1:
            cell = width + 1 - len(word)
        if cell >= len(line) + (1 if line else 0):
            line = line.ljust(cell) + word
    return line


def _head(job: JobChart, chart: Chart, unit: str) -> str:
    values = job.job
    num = len(job.rows) if values["gpus"] is None else values["gpus"]
    words = [f"job {job.number}: {num} {unit}{'s' if num != 1 else ''}"]
    if values["limit_s"] is not None:
        far = "" if chart.shows(job.limit_at_s) else " (off the chart)"
        words.append(f"limit {format_seconds(values['limit_s'])}{far}")
    useful = "unknown" if values["useful"] is None else f"{values['useful']:.0%}"
    words.append(f"useful time {useful}")
    return ", ".join(words)


def _deadline(chart: Chart, width: int, signs: _Signs) -> str:
    assert chart.deadline_s is not None
    cell = cell_of(chart.deadline_s, width=width, end_s=chart.end_s)
    word = f"deadline {format_seconds(chart.deadline_s)}"
    if cell >= len(word) + 1:
        return f"{word} {signs.deadline}".rjust(cell + 1)
    return " " * cell + f"{signs.deadline} {word}"


def _explain(chart: Chart, signs: _Signs, legend: _Legend, width: int) -> Iterator[Text]:
    bars = list(chart.bars)
    told = [f"{signs.train} training"] * any(not bar.evaluates for bar in bars)
    told += [f"{signs.evaluate} evaluation"] * any(bar.evaluates for bar in bars)
    told += [f"{signs.unknown} length not known"] * any(not bar.is_known for bar in bars)
    told += [f"{signs.idle} idle"]
    told += [f"{signs.limit} limit of the job"] * any(chart.shows(j.limit_at_s) for j in chart.jobs)
    yield from _flow(told, width)
    yield from _flow([f"{letter} {name}" for letter, name in legend.names.items()], width)
    if legend.unnamed:
        yield Text(wrap(f"{len(legend.unnamed)} more have no letter: `--json` names all", width))
    if legend.hidden:
        text = f"{len(legend.hidden)} are too short to be seen: `--json` shows all"
        yield Text(wrap(text, width))
    if chart.left_out:
        yield Text(wrap(f"{chart.left_out} more have no known beginning", width))


def _flow(words: Sequence[str], width: int) -> Iterator[Text]:
    """Side by side, as many as a line holds; one that is wider is cut."""
    line = ""
    for whole in words:
        word = whole if cell_len(whole) <= width else f"{set_cell_size(whole, width - 1)}~"
        if line and cell_len(line) + 3 + cell_len(word) > width:
            yield Text(line, style="dim")
            line = ""
        line = f"{line}   {word}" if line else word
    if line:
        yield Text(line, style="dim")
