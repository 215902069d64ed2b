"""Metrics: numbers of a run by step, merged over its attempts.

A line is {t, attempt, stage, epoch, step, samples, split, …}. When an attempt goes on from an
earlier step, what was written beyond that step is dropped: the last attempt's number wins.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tasuki.clock import Clock
from tasuki.runs.atomic import list_folder, to_json, write_bytes
from tasuki.runs.lines import LineWriter, read_lines
from tasuki.runs.runs import RunFolder

TIMING_KEYS = frozenset(
    {"t", "attempt", "samples_per_sec", "tokens_per_sec", "memory_allocated_gb"}
)
"""What two equal runs may differ in."""


class MetricLog:
    """Writes the metrics of one attempt."""

    def __init__(self, run: RunFolder, *, claim: int, clock: Clock) -> None:
        self._writer = LineWriter(run.metrics / f"{claim}.jsonl")
        self._claim = claim
        self._clock = clock

    def resume(self, *, stage: str, step: int) -> None:
        """Say that this attempt goes on from here: later lines of earlier attempts are void."""
        self._writer.append({"attempt": self._claim, "resume": {"stage": stage, "step": step}})

    def add(self, row: dict[str, Any]) -> None:
        self._writer.append({"t": round(self._clock.wall(), 3), "attempt": self._claim, **row})

    def add_all(self, rows: Sequence[dict[str, Any]]) -> None:
        """Several that were made before, each whole: with its time and attempt."""
        self._writer.append_all(rows)

    def sync(self) -> None:
        self._writer.sync()

    def close(self) -> None:
        self._writer.close()


class Merged:
    """Lines of metrics as they count: fed one after another, in order of attempt."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, int, str], dict[str, Any]] = {}
        self._stages: dict[str, None] = {}
        """In the order in which they came, also those of which no row is left."""

    def take(self, line: dict[str, Any]) -> list[dict[str, Any]]:
        """The rows that count no more, because of this line."""
        resume = line.get("resume")
        step = (resume if isinstance(resume, dict) else line).get("step", 0)
        if not isinstance(step, int):
            return []  # not a line of ours
        if isinstance(resume, dict):
            return self._drop_beyond(stage=str(resume.get("stage")), step=step)
        key = (str(line.get("stage")), step, str(line.get("split")))
        self._stages.setdefault(key[0])
        before = self._rows.pop(key, None)  # a repeated row moves to its new place
        self._rows[key] = line
        return [] if before is None else [before]

    def rows(self) -> list[dict[str, Any]]:
        """Every number once, in order of stage and step."""
        return list(self._rows.values())

    def _drop_beyond(self, *, stage: str, step: int) -> list[dict[str, Any]]:
        # Stages run one after another, so rows of a stage that comes later than `stage` are void
        # too.
        stages = list(self._stages)
        if stage not in stages:
            return []
        later = set(stages[stages.index(stage) + 1 :])
        for name in later:
            del self._stages[name]
        void = [k for k in self._rows if k[0] in later or (k[0] == stage and k[1] > step)]
        return [self._rows.pop(key) for key in void]


def metric_files(run: RunFolder) -> dict[int, Path]:
    """The file of each attempt, by its number, the oldest first."""
    files = [p for p in list_folder(run.metrics, "*.jsonl") if p.stem.isdecimal()]
    return {int(path.stem): path for path in sorted(files, key=lambda p: int(p.stem))}


def read_metrics(run: RunFolder) -> list[dict[str, Any]]:
    """Every number once, in order of stage and step."""
    merged = Merged()
    for path in metric_files(run).values():
        for line in read_lines(path):
            merged.take(line)
    return merged.rows()


def write_metrics_history(run: RunFolder) -> None:
    """The merged file for people and pandas."""
    write_bytes(run.metrics_history, b"".join(to_json(row) for row in read_metrics(run)))
