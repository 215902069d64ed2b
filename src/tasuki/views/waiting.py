"""What a person sees while a child process works: nothing at first, then how far it is. On stderr.

Called with each `Progress` of answers.py. In a terminal one line that changes and goes; elsewhere a
line now and then.
"""

from __future__ import annotations

from rich.console import Console
from rich.live import Live
from rich.text import Text

from tasuki.answers import Progress
from tasuki.clock import Clock
from tasuki.views.status import bar
from tasuki.views.text import count

_AFTER_S = 2.0
"""What is done by then needs no word."""
_PLAIN_EVERY_S = 10.0


class Waiting:
    """Shows progress from the moment on when a person starts to wonder."""

    def __init__(self, *, clock: Clock, console: Console | None = None) -> None:
        self._clock = clock
        self._console = console or Console(stderr=True)
        self._next: float | None = None
        self._live: Live | None = None

    def __enter__(self) -> Waiting:
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def __call__(self, progress: Progress) -> None:
        now = self._clock.monotonic()
        if self._next is None:
            self._next = now + _AFTER_S
        if now < self._next:
            return
        if not self._console.is_terminal:
            self._next = now + _PLAIN_EVERY_S
            self._console.print(_line(progress), highlight=False)
            return
        if self._live is None:
            self._live = Live(console=self._console, refresh_per_second=8, transient=True)
            self._live.start()
        self._live.update(_line(progress))


def _line(progress: Progress) -> Text:
    if not progress.total:
        return Text(f"{progress.what}  {count(progress.done)}")
    share = progress.done / progress.total
    return Text(
        f"{progress.what}  {bar(share, 20)} {share:.0%}  "
        f"{count(progress.done)} of {count(progress.total)}"
    )
