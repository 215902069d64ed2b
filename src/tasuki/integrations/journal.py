"""The lines of metrics that a loop writes; rank 0 does.

What belongs to a line is kept at its step; lines are made and written many at once: code that runs
again and again is quicker than code in between steps. A checkpoint counts on the lines of its
steps: `flush` comes before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from tasuki.failpoints import failpoint
from tasuki.integrations.rows import Rows
from tasuki.loop.spoken import Spoken
from tasuki.loop.worker import Worker
from tasuki.runs.metrics import MetricLog

_FLUSH_EVERY_S = 1.0
_MOST_LINES = 1000


class _Line(NamedTuple):
    """What a line is made of, kept until it is written."""

    t: float
    at: Mapping[str, Any]
    split: str
    values: Mapping[str, Any]
    more: Mapping[str, Any]

    def row(self, claim: int) -> dict[str, Any]:
        head = {"t": round(self.t, 3), "attempt": claim, **self.at, "split": self.split}
        return {**head, **self.values, **self.more}


class Journal:
    """Of one attempt."""

    def __init__(self, worker: Worker, rows: Rows) -> None:
        self.metrics = MetricLog(worker.run, claim=worker.claim, clock=worker.clock)
        self._worker, self._rows = worker, rows
        self._lines: list[_Line] = []
        self._flush_at = 0.0
        self._told_at, self._told_samples = 0.0, 0
        self._rate = 0.0
        self.is_muted = False
        """A step is repeated whose lines are there already."""

    def begin(self, *, step: int, samples: int, total_steps: int | None, now: float) -> None:
        """The attempt goes on from here: later lines of earlier ones are void."""
        self._spoken = Spoken(self._worker.say, total_steps=total_steps, now=now)
        if self._worker.is_first:
            self.metrics.resume(stage=self._worker.stage.name, step=step)
        self._flush_at = self._told_at = now
        self._told_samples = samples

    def write(self, at: Mapping[str, Any], *, lr: float | None, now: float) -> None:
        """What was logged, as lines of this step: `at` says where that is."""
        if not self._worker.is_first or self.is_muted:
            self._rows.clear()
            return
        failpoint("loop.log")
        if self._rows.pending:
            if at["samples"] != self._told_samples:
                samples = at["samples"] - self._told_samples
                self._rate = samples / max(1e-9, now - self._told_at)
                self._told_at, self._told_samples = now, at["samples"]
            self._keep(at, "train", lr=lr)
            self._spoken.tell(at, self._rows.last, now=now)
        self.write_others(at)
        if now >= self._flush_at or len(self._lines) >= _MOST_LINES:
            self.flush(now)

    def write_others(self, at: Mapping[str, Any]) -> None:
        """Lines of other splits than `train`: they wait for no `log_every`."""
        if not self._worker.is_first or self.is_muted:
            self._rows.others.clear()
        for split in list(self._rows.others):
            self._keep(at, split)

    def _keep(self, at: Mapping[str, Any], split: str, *, lr: float | None = None) -> None:
        values, more = self._rows.take(split, step=at["step"]), {}
        if split == "train":
            more["samples_per_sec"] = self._rate
            if lr is not None and "lr" not in values:
                more["lr"] = lr
        self._lines.append(_Line(self._worker.clock.wall(), at, split, values, more))

    def flush(self, now: float) -> None:
        self._flush_at = now + _FLUSH_EVERY_S
        lines, self._lines = self._lines, []
        if lines:
            claim = self._worker.claim
            self.metrics.add_all([line.row(claim) for line in lines])
