"""The terminal of `tasuki watch`: its other screen, its keys, its size; and all of it put back.

Thin: what is shown comes from watch.py, what is known from `look`. One loop without threads that
sleeps in `select`: keys, a window that changes its size (SIGWINCH) and the end (SIGINT, SIGTERM)
wake it, else the clock does. Draws only what differs from what is on the screen.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from rich.console import Console
from rich.live import Live
from rich.text import Text

from tasuki.views.watch import Window, draw_help, draw_list, draw_page

_KEYS = {
    b"q": "quit",
    b"Q": "quit",
    b"\x1b": "back",
    b"?": "help",
    b"h": "help",
    b"\x1b[A": "up",
    b"\x1bOA": "up",
    b"k": "up",
    b"\x1b[Z": "up",
    b"\x1b[B": "down",
    b"\x1bOB": "down",
    b"j": "down",
    b"\t": "down",
    b"\x1b[C": "open",
    b"\x1bOC": "open",
    b"\r": "open",
    b"\n": "open",
    b"\x1b[D": "back",
    b"\x1bOD": "back",
    b"\x03": "quit",
}
_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_ESCAPE_WITHIN_S = 0.05
"""What follows an escape within this time belongs to it: else the key itself was pressed."""


class Source(Protocol):
    """What is shown, and how more is learnt."""

    def look(self, *, first: Sequence[str]) -> bool:
        """Has anything changed? Of the runs named `first` more is shown."""
        ...

    @property
    def is_settled(self) -> bool:
        """Else it looks again at once: some runs were never looked at."""
        ...

    def runs(self) -> Sequence[dict[str, Any]]:
        """The values of all of them."""
        ...

    def losses(self, number: int) -> Sequence[float | None]:
        """For the small curve of one."""
        ...


class Screen:
    """Which run is chosen, and whether its page or the list is shown."""

    def __init__(self, source: Source, console: Console) -> None:
        self._source = source
        self._console = console
        self._selected = 0
        self._is_page = False
        self._has_help = False
        self._shown: list[tuple[str, str]] = []

    def lines(self) -> list[Text]:
        window = window_of(self._console)
        runs = self._source.runs()
        self._selected = max(0, min(self._selected, len(runs) - 1))
        if self._has_help:
            return draw_help(window)
        if len(runs) == 1 or (self._is_page and runs):
            keys = "q quit  ? help" if len(runs) == 1 else "q quit  Esc list  ↑↓ other run  ? help"
            losses = self._source.losses(self._selected)
            run = self._source.runs()[self._selected]  # the curve may have read of later steps
            return draw_page(run, window, losses=losses, keys=keys)
        return draw_list(runs, window, selected=self._selected)

    @property
    def first(self) -> list[str]:
        """The run that is looked at most closely."""
        runs = self._source.runs()
        return [runs[self._selected]["experiment"]] if self._selected < len(runs) else []

    def press(self, key: str) -> bool:
        """Act on a key. False: it is to end."""
        several = len(self._source.runs()) > 1
        if key == "quit" or (key == "back" and not self._has_help and not self._is_inside(several)):
            return False
        if key == "help" or self._has_help:
            self._has_help = key == "help" and not self._has_help
        elif key in ("up", "down"):
            self._selected += 1 if key == "down" else -1
        elif key in ("open", "back"):
            self._is_page = key == "open" and several
        return True

    def _is_inside(self, several: bool) -> bool:
        return self._is_page and several

    def show(self, live: Live) -> None:
        """Only if it is another picture."""
        lines = self.lines()
        picture = [(line.plain, repr(line.spans)) for line in lines]
        if picture != self._shown:
            self._shown = picture
            live.update(Text("\n").join(lines), refresh=True)

    def forget(self) -> None:
        """Draw anew: the window has another size."""
        self._shown = []


def watch_screen(
    source: Source, console: Console, *, every_s: float, clock: Callable[[], float] = time.monotonic
) -> None:
    """Until somebody quits. Whatever ends it, the terminal is as it was before."""
    screen = Screen(source, console)
    with _signals() as woken, _keys() as keyboard:
        live = Live(console=console, screen=True, auto_refresh=False, redirect_stderr=False)
        with live:
            next_look, has_changed = clock(), True
            while True:
                if clock() >= next_look:
                    has_changed |= source.look(first=screen.first)
                    next_look = clock() + (every_s if source.is_settled else 0.0)
                if has_changed:
                    screen.show(live)
                has_changed = False
                fds = [woken] if keyboard is None else [woken, keyboard]
                ready, _, _ = select.select(fds, [], [], max(0.0, next_look - clock()))
                if woken in ready:
                    numbers = os.read(woken, 512)
                    if any(number in _ENDS for number in numbers):
                        return
                    has_changed = True
                    screen.forget()
                if keyboard in ready:
                    has_changed = True
                    pressed = _read_keys(keyboard)
                    if pressed is None or not all(screen.press(key) for key in pressed):
                        return


def window_of(console: Console) -> Window:
    return Window(width=console.width, height=console.height, is_ascii=console.options.ascii_only)


def _read_keys(fd: int) -> list[str] | None:
    """None: the terminal is gone."""
    try:
        text = os.read(fd, 512)
    except OSError:
        return None
    if not text:
        return None
    if text.endswith(b"\x1b") and select.select([fd], [], [], _ESCAPE_WITHIN_S)[0]:
        text += os.read(fd, 512)
    found = []
    while text:
        known = [key for key in _KEYS if text.startswith(key)]
        key = max(known, key=len, default=text[:1])
        if key in _KEYS:
            found.append(_KEYS[key])
        text = text[len(key) :]
    return found


@contextlib.contextmanager
def _keys() -> Iterator[int | None]:
    """Keys as they are pressed, and not on the screen; None: nobody types."""
    fd = sys.stdin.fileno() if sys.stdin is not None and sys.stdin.isatty() else None
    if fd is None:
        yield None
        return
    before = termios.tcgetattr(fd)
    tty.setcbreak(fd)
    try:
        yield fd
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)


@contextlib.contextmanager
def _signals() -> Iterator[int]:
    """Numbers of signals as bytes on a pipe: nothing happens in the middle of a picture."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    before: dict[int, Any] = {
        number: signal.signal(number, lambda *_: None) for number in (*_ENDS, signal.SIGWINCH)
    }
    before[signal.SIGTSTP] = signal.signal(signal.SIGTSTP, signal.SIG_IGN)  # or its screen stays
    former = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    try:
        yield reading
    finally:
        signal.set_wakeup_fd(former)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(reading)
        os.close(writing)
