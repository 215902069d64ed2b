"""What `tasuki watch` shows where nobody watches: each run once, and done."""

from __future__ import annotations

from typing import Any

from rich.console import Console

from tasuki.views.watch import Window, draw_list, draw_page

_EVENTS = 8
_FEW = 3
"""Runs that are shown with all there is of them; more of them are a list."""


def show_once(values: dict[str, Any], console: Console) -> None:
    runs = values["runs"]
    width = min(console.width, 120)
    window = Window(width=width, height=10_000, is_ascii=console.options.ascii_only)
    pages = []
    for run in runs[:_FEW]:
        short = {**run, "events": run["events"][:_EVENTS]}
        pages.append(draw_page(short, window, losses=run["losses"], keys=""))
    if len(runs) > _FEW or not runs:
        pages = [draw_list(runs, window)]
    for number, page in enumerate(pages):
        if number:
            console.print()
        for line in page:
            console.print(line, highlight=False, no_wrap=True, overflow="ignore", crop=False)
