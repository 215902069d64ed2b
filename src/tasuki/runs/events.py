"""Events: what happened to a run, told by whoever did it.

One file per (claim, node, who): `events/<claim>.<node>.<who>.jsonl`.
"""

from __future__ import annotations

from typing import Any

from tasuki.clock import Clock
from tasuki.runs.atomic import FORMAT, list_folder
from tasuki.runs.lines import LineWriter, read_last_lines, read_lines
from tasuki.runs.runs import RunFolder
from tasuki.runs.series import as_number


class EventLog:
    """Writes the events of one process about one run."""

    def __init__(self, run: RunFolder, *, claim: int, node: int, who: str, clock: Clock) -> None:
        self._writer = LineWriter(run.events / f"{claim}.{node}.{who}.jsonl")
        self._run = run
        self._claim = claim
        self._node = node
        self._who = who
        self._clock = clock

    def add(self, kind: str, **facts: Any) -> None:
        self._writer.append(
            {
                "t": round(self._clock.wall(), 3),
                "claim": self._claim,
                "who": self._who,
                "kind": kind,
                **facts,
            }
        )

    def beside(self, who: str) -> EventLog:
        """Another file of the same attempt, for what would crowd this one."""
        return EventLog(self._run, claim=self._claim, node=self._node, who=who, clock=self._clock)

    def sync(self) -> None:
        self._writer.sync()

    def close(self) -> None:
        self._writer.close()


def read_events(run: RunFolder) -> list[dict[str, Any]]:
    """All events of a run in order of claim, then time."""
    return in_order([e for path in _files(run) for e in read_lines(path) if is_whole(e)])


def read_recent_events(run: RunFolder, claim: int) -> list[dict[str, Any]]:
    """The newest events of one attempt: enough to tell what it is doing, however long it runs."""
    files = [path for path in _files(run) if path.name.split(".", 1)[0] == str(claim)]
    return in_order([e for path in files for e in read_last_lines(path) if is_whole(e)])


def in_order(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """By claim, then time."""
    return sorted(events, key=_order)


def is_whole(event: dict[str, Any]) -> bool:
    """A line that tells what happened, when and in which attempt; others are nobody's. One that a
    newer tasuki wrote in a format of its own is left out: follow.py counts them."""
    at, claim = event.get("t"), event.get("claim")
    is_timed = as_number(at) is not None and isinstance(claim, int)
    return is_timed and isinstance(event.get("kind"), str) and not is_newer(event)


def is_newer(event: dict[str, Any]) -> bool:
    written = event.get("format", FORMAT)
    return not isinstance(written, int) or written > FORMAT


def _order(event: dict[str, Any]) -> tuple[int, float]:
    return int(event["claim"]), float(event["t"])


def _files(run: RunFolder) -> list[Any]:
    return list_folder(run.events, "*.jsonl")
