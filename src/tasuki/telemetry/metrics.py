"""Metrics: numbers of a run by step, merged over its attempts.

A line is {t, attempt, stage, epoch, step, samples, split, …}. When an attempt goes on from an
earlier step, what was written beyond that step is dropped: the last attempt's number wins.
"""

from __future__ import annotations

from typing import Any

from tasuki.clock import Clock
from tasuki.store.atomic import list_folder, to_json, write_bytes
from tasuki.store.runs import RunFolder
from tasuki.telemetry.lines import LineWriter, read_lines

TIMING_KEYS = frozenset({"t", "attempt", "samples_per_sec"})
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

    def sync(self) -> None:
        self._writer.sync()

    def close(self) -> None:
        self._writer.close()


def read_metrics(run: RunFolder) -> list[dict[str, Any]]:
    """Every number once, in order of stage and step."""
    rows: dict[tuple[str, int, str], dict[str, Any]] = {}
    files = [p for p in list_folder(run.metrics, "*.jsonl") if p.stem.isdecimal()]
    for path in sorted(files, key=lambda p: int(p.stem)):
        for line in read_lines(path):
            resume = line.get("resume")
            step = (resume if isinstance(resume, dict) else line).get("step", 0)
            if not isinstance(step, int):
                continue  # not a line of ours
            if isinstance(resume, dict):
                _drop_beyond(rows, stage=str(resume.get("stage")), step=step)
                continue
            key = (str(line.get("stage")), step, str(line.get("split")))
            rows.pop(key, None)  # a repeated row moves to its new place
            rows[key] = line
    return list(rows.values())


def _drop_beyond(rows: dict[tuple[str, int, str], Any], *, stage: str, step: int) -> None:
    # Stages run one after another, so rows of a stage that comes later than `stage` are void too;
    # they stand behind it in insertion order.
    stages = list(dict.fromkeys(key[0] for key in rows))
    if stage not in stages:
        return
    later = set(stages[stages.index(stage) + 1 :])
    for key in [k for k in rows if k[0] in later or (k[0] == stage and k[1] > step)]:
        del rows[key]


def write_metrics_history(run: RunFolder) -> None:
    """The merged file for people and pandas."""
    write_bytes(run.metrics_history, b"".join(to_json(row) for row in read_metrics(run)))
