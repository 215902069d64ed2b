"""Warnings about a run's sinks, each told once per run and not again by every attempt.

What a sink's code raised may hold keys and addresses, so a warning says where the whole words are
instead of repeating them.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from tasuki.errors import StoreError
from tasuki.runs.atomic import list_folder
from tasuki.runs.events import EventLog
from tasuki.runs.lines import read_lines
from tasuki.runs.runs import RunFolder


def warn_once(events: EventLog, run: RunFolder, text: str, *, see: Path) -> None:
    """Unless an attempt of this run has said the same; `see` holds what this one knows."""
    if not _was_told(run, text):
        events.add("warning", text=f"{text}; see {see}", about=text)


def _was_told(run: RunFolder, text: str) -> bool:
    with contextlib.suppress(OSError, StoreError):
        files = list_folder(run.events, "*.sinks.jsonl")
        return any(event.get("about") == text for path in files for event in read_lines(path))
    return False
