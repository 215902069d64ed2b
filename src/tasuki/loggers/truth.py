"""A run's rows as they count now, over all attempts and stages, followed while they are written.

Reads only.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from tasuki.loggers.sink import SinkRow
from tasuki.runs.atomic import read_json, read_json_or_none
from tasuki.runs.find import stage_names
from tasuki.runs.lines import LineReader, read_lines
from tasuki.runs.metrics import TIMING_KEYS, Merged, metric_files
from tasuki.runs.runs import RunFolder

_PLACE = {"t", "attempt", "stage", "epoch", "step", "samples", "split"}


@dataclass(frozen=True, slots=True)
class News:
    """What has to be told."""

    begins: bool
    """`rows` are all that count; what was told before is void."""
    rows: tuple[SinkRow, ...]


class Truth:
    """Of one run, as an attempt sees it."""

    def __init__(self, run: RunFolder, *, claim: int) -> None:
        self._run, self._claim = run, claim
        self._merged: Merged | None = None
        self._own = LineReader(run.metrics / f"{claim}.jsonl")
        self._stages = stage_names(run)
        self._lengths: dict[str, int] = {}
        self._evaluated: dict[str, str] = {}
        """Stage → when it was evaluated, as last told."""

    def look(self, *, is_last: bool = False) -> News | None:
        """None: nothing new. Before the attempt has said from where it goes on there is none, as
        nobody knows what counts; unless it ends without having said so."""
        lines = self._own.read()
        if self._merged is None:
            if not lines and not is_last:
                return self._evaluation_alone()
            self._merged = self._before()
            for line in lines:
                self._merged.take(line)
            return self._begin()
        return self._go_on(self._merged, lines)

    def _before(self) -> Merged:
        """What earlier attempts wrote."""
        merged = Merged()
        for claim, path in metric_files(self._run).items():
            if claim < self._claim:
                for line in read_lines(path):
                    merged.take(line)
        return merged

    def _evaluation_alone(self) -> News | None:
        """An attempt that only evaluates, since all training is done, goes on from nowhere."""
        if not any(self._found_evaluations(self._stages[-1:])):
            return None
        self._merged = self._before()
        return self._begin()

    def _begin(self) -> News:
        assert self._merged is not None
        self._lengths.clear()
        self._evaluated.clear()
        rows = list(self._rows(self._merged.rows()))
        evaluations = list(self._found_evaluations(self._stages))
        # In order of steps: a stage's evaluation comes before the next stage's first row.
        ordered = sorted([*rows, *evaluations], key=self._order)
        return News(True, tuple(ordered))

    def _order(self, row: SinkRow) -> tuple[int, int, bool]:
        stage = self._stages.index(row.stage) if row.stage in self._stages else 0
        return stage, row.stage_step, row.split == "eval"

    def _go_on(self, merged: Merged, lines: list[dict[str, Any]]) -> News | None:
        fresh: list[SinkRow] = []
        for number, line in enumerate(lines):
            void = merged.take(line)
            if len(void) == 1 and _is_same(void[0], line):
                continue  # a validation that was made up for, with the same result
            if void:
                for later in lines[number + 1 :]:
                    merged.take(later)
                return self._begin()
            fresh += self._rows([line])
        fresh += self._found_evaluations(self._stages)
        return News(False, tuple(sorted(fresh, key=self._order))) if fresh else None

    # -- rows -----------------------------------------------------------------------------------

    def _rows(self, lines: list[dict[str, Any]]) -> Iterator[SinkRow]:
        for line in lines:
            stage, step = line.get("stage"), line.get("step")
            # At step 0 of a later stage the validation has the step of the stage before's last one.
            is_twice = step == 0 and stage in self._stages[1:]
            if "resume" not in line and isinstance(step, int) and not is_twice:
                yield self._row(line)

    def _row(self, line: dict[str, Any]) -> SinkRow:
        stage, step = str(line.get("stage")), int(line["step"])
        return SinkRow(
            step=self._steps_before(stage) + step,
            time=float(line.get("t", 0.0)),
            attempt=int(line.get("attempt", self._claim)),
            stage=stage,
            stage_step=step,
            epoch=int(line.get("epoch", 0)),
            samples=int(line.get("samples", 0)),
            split=_split(line.get("split")),
            values=_numbers({k: v for k, v in line.items() if k not in _PLACE}),
        )

    def _steps_before(self, stage: str) -> int:
        """Of all earlier stages, which are finished."""
        earlier = itertools.takewhile(lambda name: name != stage, self._stages)
        return sum(self._length(name) for name in earlier)

    def _length(self, stage: str) -> int:
        if stage not in self._lengths:
            done = read_json_or_none(self._run.stage(stage).metrics)
            if done is None:
                return 0
            self._lengths[stage] = int(done["steps"])
        return self._lengths[stage]

    def _found_evaluations(self, stages: list[str]) -> Iterator[SinkRow]:
        """Those that were not told yet."""
        for stage in stages:
            folder = self._run.stage(stage)
            if not folder.evaluation.exists() or not folder.metrics.exists():
                continue
            if stage in self._evaluated:
                continue
            told = read_json(folder.evaluation)
            self._evaluated[stage] = str(told.get("evaluated_at"))
            done = read_json(folder.metrics)
            yield SinkRow(
                step=self._steps_before(stage) + int(done["steps"]),
                time=folder.evaluation.stat().st_mtime,
                attempt=self._claim,
                stage=stage,
                stage_step=int(done["steps"]),
                epoch=int(done.get("epochs") or 0),
                samples=int(done.get("samples") or 0),
                split="eval",
                values=_numbers(told.get("metrics") or {}),
            )


def _split(word: object) -> Literal["train", "val"]:
    return "val" if word == "val" else "train"


def _is_same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return all(
        one.get(key) == other.get(key) for key in {*one, *other} - TIMING_KEYS if key != "resume"
    )


def _numbers(values: dict[str, Any]) -> dict[str, float]:
    """NaN and infinities are words in the files."""
    found = {}
    for name, value in values.items():
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if is_number or value in ("nan", "inf", "-inf"):
            found[name] = float(value)
    return found
