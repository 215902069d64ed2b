"""What one look at a run needs of its events, without reading a week of signs of life.

Every `progress` of a stage holds all that the earlier ones of its attempt held, and whoever writes
into a file of their own (machine figures, memory) is asked for the last word only. So a look costs
as much after a week as after an hour. Who wants the whole story reads events.py.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from tasuki.runs.atomic import list_folder
from tasuki.runs.events import in_order, is_whole
from tasuki.runs.lines import LineReader, parse_lines, read_last_lines, read_lines
from tasuki.runs.runs import RunFolder

_PROGRESS = re.compile(rb'"kind": "progress", "stage": ("(?:[^"\\]|\\.)*")')
_READ_WHOLE = ("supervisor", "after", "resume", "run-")
"""Who tells of attempts and their ends; their files are short."""


def read_brief_events(run: RunFolder) -> list[dict[str, Any]]:
    """Enough of a run's events for its ledger and what it has cost, in their order."""
    events = []
    for path in list_folder(run.events, "*.jsonl"):
        events += [event for event in _read(path) if is_whole(event)]
    return in_order(events)


def read_last_of(run: RunFolder, claim: int, who: str, kind: str) -> dict[str, Any]:
    """The newest such event that somebody on the first node told in an attempt; {}: none."""
    told = read_last_lines(run.events / f"{claim}.0.{who}.jsonl")
    own = (event for event in reversed(told) if is_whole(event) and event["kind"] == kind)
    return next(own, {})


def _read(path: Path) -> list[dict[str, Any]]:
    who = path.name.removesuffix(".jsonl").split(".", 2)[-1]
    if who.startswith(_READ_WHOLE):
        return list(read_lines(path))
    if who == "rank0":
        return _last_words(path)
    return read_last_lines(path)[-1:]


def _last_words(path: Path) -> list[dict[str, Any]]:
    """All but those of its signs of life that a later one of the same stage repeats."""
    kept, last = dict[int, bytes](), dict[bytes, int]()
    lines = (line for part in LineReader(path).read_parts() for line in part.split(b"\n"))
    for number, line in enumerate(lines):
        found = _PROGRESS.search(line)
        if found is not None and line.endswith(b"}"):  # a torn one is nobody's last word
            kept.pop(last.get(found[1], -1), None)
            last[found[1]] = number
        kept[number] = line
    return list(parse_lines(b"\n".join(kept.values())))
