"""What the board needs to know about runs: a port, filled by `cli/board.py` from actions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from tasuki.views.text import LogText

Values = dict[str, Any]
"""As `--json` would print it; what is unknown is None."""


class Source(Protocol):
    """Runs of one folder. Every method reads files and may take a while; any thread may call."""

    def names(self) -> list[str]:
        """All runs there are: only these names are ever asked for."""

    def summary(self, name: str) -> Values:
        """One line of the list: cheap when nothing changed since the last call."""

    def detail(self, name: str) -> Values:
        """Everything about a run that is not a curve, an event or a log."""

    def curves(
        self,
        name: str,
        *,
        points: int,
        first: float | None = None,
        last: float | None = None,
        beyond: Mapping[tuple[str, str], float] | None = None,
    ) -> Values:
        """Numbers by step, at most `points` of each series, between two steps; of a (key, split) in
        `beyond` only what comes after that step. `live`: of each machine figure what was told last,
        {rows, t, value}."""

    def events(self, name: str, *, most: int) -> Values:
        """The newest events, and how many there are: {total, events}."""

    def log(self, name: str, *, file: str | None, start: int | None, end: int | None) -> Values:
        """A bounded piece of a log, in bytes from `start` on or up to `end`: {files, file, start,
        end, size, text}; its last lines without either, of the newest file without a `file`."""


def shown(piece: Values, lines: LogText | None = None) -> Values:
    """A piece of a log without what only a terminal understands: escapes, carriage returns of
    progress bars. `lines`: of the pieces before it."""
    return {**piece, "text": (lines or LogText()).take(str(piece["text"]))}
