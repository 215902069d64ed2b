"""The report of some runs: one page to mail (page.py), or text for papers (text.py). All pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MOST_DRAWN = 24
"""Runs in one picture; the table of results has them all."""


def num_drawn(form: str) -> int:
    """Of how many runs, the first ones, the form shows curves."""
    return MOST_DRAWN if form == "html" else 0


def render(report: Mapping[str, Any], form: str) -> str:
    """As `html`, `md` or `csv`."""
    from tasuki.views.report.page import page_of
    from tasuki.views.report.text import csv_of, markdown_of

    return {"html": page_of, "md": markdown_of, "csv": csv_of}[form](report)
