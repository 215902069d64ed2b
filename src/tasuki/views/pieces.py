"""One piece of a plan in the words of its tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tasuki.units import format_seconds
from tasuki.views.text import count

_FORETOLD = ("predicted", "history")
"""Batches that may turn out otherwise."""


def steps_of(piece: Mapping[str, Any]) -> str:
    if piece["kind"] != "train":
        return ""
    if piece["to_step"] is None:
        return "–"
    return f"{count(piece['from_step'])} – {count(piece['to_step'])}"


def batch_of(piece: Mapping[str, Any], ranks: int = 1) -> str:
    """`64 = 8 × 4 × 2 (predicted)` with two ranks; what is not known before it runs is `auto`."""
    source = piece["batch_source"]
    if piece["kind"] != "train" or source == "command":
        return ""
    whole, mark = piece["effective_batch"], f" ({source})" if source in _FORETOLD else ""
    if piece["budget"] is not None:
        known = piece["budget"] if piece["budget"] == "auto" else count(piece["budget"])
        return f"{whole}, budget {known}{mark}"
    if piece["micro_batch"] is None:
        return f"{whole}, auto"
    times = f" × {ranks}" if ranks > 1 else ""
    return f"{whole} = {piece['micro_batch']} × {piece['accumulation']}{times}{mark}"


def time_of(seconds: float | None) -> str:
    return "–" if seconds is None else format_seconds(seconds)
