"""Text that is safe and pleasant to show."""

from __future__ import annotations

import os
import re
import time
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

from tasuki.units import format_seconds

if TYPE_CHECKING:
    from rich.console import Console

_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|.)?", re.DOTALL)

_HARMFUL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters but for line breaks and tabs
    "\u2028\u2029\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # break lines, turn text around
    "\ud800-\udfff]"  # halves of characters, which no stream takes
)

STATE_COLOURS = {
    "complete": "green",
    "running": "cyan",
    "failed": "red",
    "held": "red",
    "cancelled": "yellow",
    "handed-over": "yellow",
}
"""Of a run, wherever its state is shown."""

_IN_ASCII = str.maketrans(
    {"–": "-", "×": "x", "…": ".", "±": "~", "→": ">", "�": "?", "↑": "^", "↓": "v"}
)
"""One for one: tables keep their widths."""


def neutral(text: str) -> str:
    """Terminal escapes and control characters made harmless: logs are not to be trusted."""
    return _HARMFUL.sub("�", _ESCAPES.sub("�", text))


class LogText:
    """What a program printed, as lines: a progress bar overwrites its own, which only a terminal
    can show. Part by part: a line's end of two characters may be in two of them."""

    def __init__(self) -> None:
        self._has_ended = False

    def take(self, part: str) -> str:
        """Parts of one log, in order."""
        rest = part[1:] if self._has_ended and part.startswith("\n") else part
        if part:
            self._has_ended = part.endswith("\r")
        return neutral(rest.replace("\r\n", "\n").replace("\r", "\n"))


def line_of(text: object) -> str:
    """As `neutral`, and on one line: a name is a cell of a table."""
    return neutral(str(text)).replace("\n", "�").replace("\t", " ")


def wrap(text: str, width: int | None) -> str:
    """Broken at spaces alone: a path that is wider than the line stays whole, for it may be copied.
    What follows a break is indented as its line. Without a width nothing is broken."""
    if width is None:
        return text
    return "\n".join(_wrap_line(line, width) for line in text.split("\n"))


def _wrap_line(line: str, width: int) -> str:
    words = line.split(" ")
    indent = " " * (len(line) - len(line.lstrip(" ")))
    lines, taken = [words[0]], _cells(words[0])
    for word in words[1:]:
        wide = _cells(word)
        if taken + 1 + wide > width and lines[-1].strip():
            lines.append(indent + word)
            taken = len(indent) + wide
        else:
            lines[-1] += f" {word}"
            taken += 1 + wide
    return "\n".join(part.rstrip() for part in lines)


def _cells(word: str) -> int:
    return sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in word)


def say(
    console: Console, text: str, style: str = "", *, label: str = "", label_style: str = ""
) -> None:
    """Text from wherever, after a label of ours: wrapped where it is read on a terminal."""
    from rich.text import Text

    whole = f"{label} {neutral(text)}" if label else neutral(text)
    words = Text(wrap(whole, console.width if console.is_terminal else None), style=style)
    words.stylize(label_style, 0, len(label))
    console.print(words, highlight=False, soft_wrap=True)


def warn(console: Console, text: str) -> None:
    say(console, text, label="warning:", label_style="yellow")


def in_ascii(text: str) -> str:
    """In signs that every terminal has; one for one."""
    return text.translate(_IN_ASCII).encode("ascii", "replace").decode()


@contextmanager
def encodable(console: Console) -> Iterator[None]:
    """What is printed within, in signs that the stream behind the console can take."""
    if not console.options.ascii_only:
        yield
        return
    with console.capture() as captured:
        yield
    words = captured.get().translate(_IN_ASCII)
    console.file.write(words.encode(console.encoding, "replace").decode(console.encoding))


def width_of(stream: TextIO) -> int | None:
    """Columns of the terminal behind a stream; None: there is none."""
    try:
        if not stream.isatty():
            return None
        return int(os.environ.get("COLUMNS") or 0) or os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):
        return None


def plain_number(value: object) -> str:
    """A metric. NaN is a word in JSON, and scripts may log texts: shown as they are, and inert."""
    if value is None:
        return "–"
    if isinstance(value, int | float):
        return f"{value:.4g}"
    return line_of(value)[:12]


def number(value: object) -> str:
    """The same within rich's markup."""
    return plain_number(value).replace("[", r"\[")  # as rich's `escape`


def goodput_of(ledger: Mapping[str, Any]) -> str:
    """Of what it is a share is not the wall clock: waiting in a queue costs nobody anything."""
    if ledger["goodput"] is None:
        return ""
    allocated = ledger["wall_s"] - ledger["parts"].get("queue", 0.0)
    return f"goodput {ledger['goodput']:.0%} of {format_seconds(allocated)} allocated"


def was_queued(attempts: Sequence[Mapping[str, Any]]) -> bool:
    """Was a run, by its story, ever in a scheduler's queue? Where one's own machine alone worked on
    it, or a script by itself, what lies between attempts is nobody's wait but a time away. Of one
    without an attempt nobody knows."""
    return not attempts or any(attempt["scheduler_job"] for attempt in attempts)


NOT_RUNNING = "not running"
"""The ledger's `queue` of a run that never was in one."""


def local_time(t: float, form: str, *, unknown: str) -> str:
    """At this machine's clock; a moment that no calendar has, from a damaged line, is left open."""
    try:
        return time.strftime(form, time.localtime(t))
    except (OverflowError, ValueError, OSError):
        return unknown


def money(value: float | None) -> str:
    """In the currency of whoever wrote the price."""
    if value is None:
        return "–"
    return f"{value:.2g}" if 0.0 < value < 0.01 else f"{value:,.2f}"


def count(value: object) -> str:
    if value is None:
        return "–"
    return f"{value:,}" if isinstance(value, int | float) else line_of(value)[:12]
