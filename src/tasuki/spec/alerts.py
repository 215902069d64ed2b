"""`on`: who is told of what became of a run. A mapping from outcomes to commands.

A command is written as everywhere else: a list of words, or one text that is split as a shell does
and read by none (`[bash, -c, '…']` has one). Checked by check.py, run by jobs/alerts.py.
"""

from __future__ import annotations

from collections.abc import Mapping

from tasuki.spec.commands import parse_command

COMPLETE = "complete"
HELD = "held"
DEADLINE_RISK = "deadline-risk"
OUTCOMES = (COMPLETE, HELD, DEADLINE_RISK)
MEANT = {"failed": HELD, "fail": HELD, "hold": HELD, "done": COMPLETE, "deadline": DEADLINE_RISK}
"""What people write instead; `held` is told of failures too, for both wait for a person."""


def parse_alerts(written: Mapping[str, object]) -> dict[str, tuple[str, ...]]:
    """By outcome: the words of its command."""
    return {outcome: parse_command(command) for outcome, command in written.items() if command}
