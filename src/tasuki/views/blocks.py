"""Bars and small curves out of block characters, or plain ASCII where a terminal has nothing else.

Pure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

_EIGHTHS = "▏▎▍▌▋▊▉█"
_HEIGHTS = "▁▂▃▄▅▆▇█"
_ASCII_HEIGHTS = "_.-=*#"
_WIDE = 10.0


def bar(share: float, width: int, *, is_ascii: bool) -> str:
    """How much of a whole, as wide as asked."""
    share = min(1.0, max(0.0, share)) if math.isfinite(share) else 0.0
    full = math.floor(share * width + 1e-9)
    if is_ascii:
        return "#" * full + "." * (width - full)
    return "█" * full + "░" * (width - full)


def span(begin: float, end: float, width: int, *, is_ascii: bool) -> str:
    """A bar from one share of the width to another, at least a sign of it; never wider."""
    first, last = (min(width * 8, max(0, round(at * width * 8))) for at in (begin, end))
    last = max(last, first + 1) if end > begin else first
    cell, inside = divmod(first, 8)
    if last == first or cell >= width:
        return ""
    if is_ascii:
        return " " * cell + "#" * max(1, round((last - first) / 8))
    cells = (last - cell * 8) / 8
    full, rest = divmod(round(cells * 8), 8)
    drawn = "█" * full + (_EIGHTHS[rest - 1] if rest else "")
    # A bar that begins inside of a cell would need a block from the right: none has eight of them.
    return (" " * cell + (drawn if inside < 4 or len(drawn) > 1 else "▐"))[:width]


def sparkline(values: Sequence[float | None], width: int, *, is_ascii: bool) -> str:
    """The last of it to the right; each cell the mean of what falls into it, a gap is a blank.
    By logarithm where it spans more than a power of ten: else all but its beginning is flat."""
    heights = _ASCII_HEIGHTS if is_ascii else _HEIGHTS
    cells = _scaled(_cells(values, width))
    known = [value for value in cells if value is not None]
    if not known:
        return ""
    low, high = min(known), max(known)
    scale = (len(heights) - 1) / (high - low) if high > low else 0.0
    return "".join(
        " " if value is None else heights[round((value - low) * scale)] for value in cells
    )


def _scaled(cells: list[float | None]) -> list[float | None]:
    known = [value for value in cells if value is not None]
    if not known or min(known) <= 0 or max(known) <= _WIDE * min(known):
        return cells
    return [None if value is None else math.log(value) for value in cells]


def _cells(values: Sequence[float | None], width: int) -> list[float | None]:
    if len(values) <= width:
        return list(values)
    cells: list[float | None] = []
    for number in range(width):
        begin, end = len(values) * number // width, len(values) * (number + 1) // width
        known = [value for value in values[begin:end] if value is not None]
        cells.append(sum(known) / len(known) if known else None)
    return cells
