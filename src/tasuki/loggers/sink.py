"""What a sink is: the contract between the process that follows a run and whoever shows it.

Public as `tasuki.Sink`. Values only; the calls are made by `feed.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

_OWN_TAGS = {
    "lr": "LR",
    "samples_per_sec": "Throughput/samples_per_sec",
    "tokens_per_sec": "Throughput/tokens_per_sec",
    "memory_allocated_gb": "Memory/allocated_gb",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkRun:
    """The run whose rows come."""

    name: str
    """The run's folder is called so: the experiment, with a number after `--new`."""
    project: str
    path: Path
    """The run's folder: for a file of your own, too."""
    folder: Path
    """The spec's folder."""
    attempt: int
    """1 for the first; the same run goes on in every later one."""
    created_at: str
    """With the name it makes an id that stays the same over all attempts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkRow:
    """Numbers of one step."""

    step: int
    """Over all stages: those of earlier stages are added."""
    time: float
    """Seconds since 1970."""
    attempt: int
    stage: str
    stage_step: int
    epoch: int
    samples: int
    split: Literal["train", "val", "eval"]
    values: Mapping[str, float]
    """By the names of the run's metrics: loss, lr, samples_per_sec, …"""

    def tagged(self) -> dict[str, float]:
        """The same by the names that TensorBoard shows: Loss/train, LR, Eval/accuracy, …"""
        tags: dict[str, float] = {}
        for name, value in self.values.items():
            tag = self._tag(name)
            while tag in tags:  # `Loss` beside `loss`
                tag += "_"
            tags[tag] = value
        return tags

    def _tag(self, name: str) -> str:
        if self.split == "eval":
            return f"Eval/{name}"
        if self.split == "train" and name in _OWN_TAGS:
            return _OWN_TAGS[name]
        return f"{name[:1].upper()}{name[1:]}/{self.split}"


class Sink(Protocol):
    """Gets a run's rows in order. Made once per attempt, with the options in the spec as keyword
    arguments; called by one thread of a process of its own. What it raises is told as a warning,
    and it is called no more in this attempt."""

    def begin(self, run: SinkRun, history: Sequence[SinkRow]) -> None:
        """Make what you show equal to `history`: all rows that count now. Called first, and again
        when rows that you were given do not count any more (after a roll-back)."""
        ...

    def log(self, row: SinkRow) -> None:
        """One row more."""
        ...

    def flush(self) -> None:
        """No more rows are waiting: show what you have."""
        return

    def close(self) -> None:
        """The attempt is over. There may be only a second or two for this."""
        ...
