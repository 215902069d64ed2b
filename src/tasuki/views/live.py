"""What happens while `tasuki run` works: bars on a terminal, a few lines elsewhere. On stderr."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.spinner import Spinner
from rich.text import Text

from tasuki.clock import Clock
from tasuki.units import format_seconds
from tasuki.views.chart import is_packed
from tasuki.views.gantt import show_gantt
from tasuki.views.status import bar
from tasuki.views.text import count, money, neutral, number, say

_EVERY_S = 0.5
_PLAIN_EVERY_S = 10.0
_BARS = (20, 12, 6, 0)
"""Widths, the widest that fits is taken."""


class LiveView:
    """Shows runs as they go. `look` gives their state, as `brief_run` does."""

    def __init__(
        self,
        look: Callable[[], list[dict[str, Any]]],
        *,
        clock: Clock,
        console: Console | None = None,
    ) -> None:
        self._look = look
        self._clock = clock
        self.console = console or Console(stderr=True)
        self._live: Live | None = None
        self._next = 0.0
        self._told: dict[str, tuple[str, str]] = {}
        self._noted: set[tuple[str, str]] = set()

    def __enter__(self) -> LiveView:
        if self.console.is_terminal:
            self._live = Live(console=self.console, refresh_per_second=4, transient=True)
            self._live.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if self._live is not None:
            self._live.stop()
        if kind is None:  # what was told since the last look
            for run in self._look():
                self._tell_notable(run)

    def headline(self, text: str) -> None:
        self.console.print(f"\n[bold]{escape(text)}[/]", highlight=False)

    def begin(self, text: str) -> None:
        """What is done before anything runs."""
        if self._live is not None:
            self._live.update(Spinner("dots", text=Text(text)))
        else:
            self.say("plan", f"{text} …")

    def show_plan(self, plan: Any, *, unit: str = "GPU") -> None:
        """One line; where lanes run side by side also which of them does what when."""
        num = len(plan.jobs)
        if num:
            expected = plan.makespan_s
            told = f", about {format_seconds(expected)}" if expected is not None else ""
            told += f", cost {money(plan.cost)}" if plan.cost is not None else ""
            self.say("plan", f"plan {plan.id}: {num} job{'s' if num != 1 else ''}{told}")
        if is_packed(values := plan.as_json()):
            show_gantt(values, self.console, unit=unit)
        for warning in plan.warnings:
            self.say("warning", f"warning: {warning}")

    def say(self, kind: str, text: str) -> None:  # noqa: ARG002 (kinds are for other faces)
        say(self.console, text)

    def tick(self) -> None:
        now = self._clock.monotonic()
        if now < self._next:
            return
        self._next = now + (_EVERY_S if self._live else _PLAIN_EVERY_S / 20)
        runs = self._look()
        for run in runs:
            self._tell_notable(run)
        if self._live is not None:
            width = self.console.width
            self._live.update(Group(*(_one_line(line(run, width=width)) for run in runs)))
        else:
            self._tell_changes(runs, now)

    def _tell_notable(self, run: dict[str, Any]) -> None:
        """Each once: what went wrong belongs to whoever watches, not to the log alone."""
        for text in run.get("notable", ()):
            key = (run["experiment"], text)
            if key not in self._noted:
                self._noted.add(key)
                self.say("warning", f"{run['experiment']}  {neutral(text)}")

    def _tell_changes(self, runs: list[dict[str, Any]], now: float) -> None:
        """Without a terminal: a line when a stage begins or ends, and one every ten seconds."""
        tens = int(now / _PLAIN_EVERY_S)
        for run in runs:
            mark = f"{run['stage']} {len(run['done'])} {run['attempt']} {tens}"
            text = line(run)
            last_mark, last_text = self._told.get(run["experiment"], ("", ""))
            if mark != last_mark and text != last_text:
                self._told[run["experiment"]] = (mark, text)
                self.console.print(Text.from_markup(text), highlight=False, soft_wrap=True)


def _one_line(markup: str) -> Text:
    text = Text.from_markup(markup)
    text.no_wrap, text.overflow = True, "ellipsis"
    return text


def line(run: dict[str, Any], *, width: int | None = None) -> str:
    """One run in one line: the bar gives way first where it is wider than the window."""
    words = ""
    for cells in _BARS:
        words = _line(run, cells)
        if width is None or Text.from_markup(words).cell_len <= width:
            break
    return words


def _line(run: dict[str, Any], cells: int) -> str:
    name = escape(run["experiment"])
    number_of = f"stage {min(len(run['done']) + 1, len(run['stages']))}/{len(run['stages'])}"
    if run["state"] == "complete":
        return f"{name}  complete"
    if run["state"] == "waiting" and not run["attempt"]:
        return f"{name}  waiting"
    if run["phase"] == "evaluate" and run["phase_stage"] in run["done"]:
        passed = f"  {format_seconds(run['doing_s'])}" if run["doing_s"] else ""
        return f"{name}  evaluating {escape(run['phase_stage'])}{passed}  attempt {run['attempt']}"
    if run["stages"] and len(run["done"]) == len(run["stages"]):
        return f"{name}  finishing  attempt {run['attempt']}"
    if not run["stage"] or not run["total_steps"] or run["stage"] in run["done"]:
        return f"{name}  {number_of}  {_starting(run)}  attempt {run['attempt'] or 1}"
    share = run["step"] / run["total_steps"]
    # Beside the stage's steps, as it is the stage's: that of the run is in `status`.
    left = f"  {format_seconds(run['eta_s'])} left" if run["eta_s"] else ""
    progress = f"  {bar(share, cells)}" if cells else ""
    return (
        f"{name}  {number_of} {escape(run['stage'])}{progress}  "
        f"{count(run['step'])}/{count(run['total_steps'])}{left}  loss {number(run['loss'])}  "
        f"attempt {run['attempt']}"
    )


def _starting(run: dict[str, Any]) -> str:
    if run.get("is_command"):
        return f"{escape(run['phase_stage'])}: {run['doing']}  {format_seconds(run['doing_s'])}"
    if not run["doing"]:
        return "starting"
    return f"starting: {escape(run['doing'])}  {format_seconds(run['doing_s'])}"
