"""What a person sees while a child works: what it is at, for how long, and how far. On stderr.

Called with each `Progress` of a child process. In a terminal one line that moves from the first
second on, by a thread here, so that it moves while the child is silent too; it goes at the end.
Elsewhere a line now and then.
"""

from __future__ import annotations

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from tasuki import subprocesses
from tasuki.clock import Clock
from tasuki.subprocesses import Progress
from tasuki.units import format_seconds
from tasuki.views.status import bar
from tasuki.views.text import count

_MOVES_AFTER_S = 0.5
"""What is done by then needs no word in a terminal."""
_AFTER_S = 2.0
"""The same elsewhere."""
_PLAIN_EVERY_S = 10.0


class Waiting:
    """Shows that something goes on from the moment on when a person starts to wonder."""

    def __init__(self, *, clock: Clock, console: Console | None = None) -> None:
        self._clock = clock
        self._console = console or Console(stderr=True)
        self._began = clock.monotonic()
        self._next: float | None = None
        self._progress = Progress("starting", 0, None)
        self._spinner = Spinner("dots")
        self._live: Live | None = None

    def __enter__(self) -> Waiting:
        self._began = self._clock.monotonic()
        if self._console.is_terminal:
            self._live = Live(
                console=self._console,
                get_renderable=self.render,
                refresh_per_second=8,
                transient=True,
                redirect_stdout=False,
            )
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def __call__(self, progress: Progress | subprocesses.Progress) -> None:
        self._progress = Progress(progress.what, progress.done, progress.total)
        if self._live is None and not _is_word(self._progress):
            self._tell_plainly(self._progress)

    def say(self, text: str) -> None:
        """What is begun now, by its name alone; without a terminal each is a line."""
        self._progress = Progress(text, 0, None)
        if self._live is None:
            self._console.print(Text(f"{text} …"), highlight=False, soft_wrap=True)

    def render(self) -> RenderableType:
        """As the terminal shows it now."""
        passed = self._clock.monotonic() - self._began
        if passed < _MOVES_AFTER_S:
            return Group()
        line = _line(self._progress)
        line.append(f"  {format_seconds(int(passed))}", style="dim")
        line.no_wrap, line.overflow = True, "ellipsis"
        self._spinner.update(text=line)
        return self._spinner

    def _tell_plainly(self, progress: Progress) -> None:
        now = self._clock.monotonic()
        if self._next is None:
            self._next = now + _AFTER_S
        if now >= self._next:
            self._next = now + _PLAIN_EVERY_S
            self._console.print(_line(progress), highlight=False, soft_wrap=True)


def _is_word(progress: Progress) -> bool:
    """Nothing is counted: it only says what has begun."""
    return progress.total is None and not progress.done


def _line(progress: Progress) -> Text:
    if _is_word(progress):
        return Text(progress.what)
    if not progress.total:
        return Text(f"{progress.what}  {count(progress.done)}")
    share = progress.done / progress.total
    return Text(
        f"{progress.what}  {bar(share, 20)} {share:.0%}  "
        f"{count(progress.done)} of {count(progress.total)}"
    )
