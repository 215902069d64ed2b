"""Text that is safe and pleasant to show."""

from __future__ import annotations

import re
import unicodedata

_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|.)?", re.DOTALL)


def neutral(text: str) -> str:
    """Terminal escapes and control characters made harmless: logs are not to be trusted."""
    text = _ESCAPES.sub("�", text)
    return "".join(c if c in "\n\t" or unicodedata.category(c) != "Cc" else "�" for c in text)


def number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.4g}"


def money(value: float | None) -> str:
    """In the currency of whoever wrote the price."""
    if value is None:
        return "–"
    return f"{value:.2g}" if 0.0 < value < 0.01 else f"{value:,.2f}"


def count(value: int | None) -> str:
    return "–" if value is None else f"{value:,}"
