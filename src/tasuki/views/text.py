"""Text that is safe and pleasant to show."""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.console import Console

_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|.)?", re.DOTALL)

_LONGEST_TEXT = 24
"""Of a text where a number is shown."""
_IN_ASCII = str.maketrans({"–": "-", "×": "x", "…": ".", "±": "~", "→": ">", "�": "?"})
"""One for one: tables keep their widths."""


def neutral(text: str) -> str:
    """Terminal escapes and control characters made harmless: logs are not to be trusted."""
    text = _ESCAPES.sub("�", text)
    return "".join(c if c in "\n\t" or unicodedata.category(c) != "Cc" else "�" for c in text)


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


def number(value: Any) -> str:
    """NaN is a word in JSON, and a script may log texts: they are shown as such, and are inert."""
    if value is None:
        return "–"
    if isinstance(value, int | float):
        return f"{value:.4g}"
    text = " ".join(neutral(str(value)).split())
    text = text if len(text) <= _LONGEST_TEXT else f"{text[: _LONGEST_TEXT - 1]}…"
    return text.replace("[", r"\[")  # as rich's `escape`


def money(value: float | None) -> str:
    """In the currency of whoever wrote the price."""
    if value is None:
        return "–"
    return f"{value:.2g}" if 0.0 < value < 0.01 else f"{value:,.2f}"


def count(value: int | None) -> str:
    return "–" if value is None else f"{value:,}"
