"""Run folders as tasuki leaves them, made without training: many of them, long ones, growing ones.

Used by the parts of use.py. The files are those that supervisors and ranks write (docs/design.md,
Formats).
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import psutil

from tasuki.clock import SystemClock
from tasuki.runs.attempts import write_attempt_end, write_holder
from tasuki.runs.claims import take_claim
from tasuki.runs.events import EventLog
from tasuki.runs.metrics import MetricLog
from tasuki.runs.runs import RunFolder

TOTAL = 1_000_000
_STAGES = ("first", "second", "third")


class FakeRun:
    """A run with one attempt, held by this process: it counts as running until it is ended."""

    def __init__(self, path: Path, *, at: float | None = None) -> None:
        self.run = RunFolder(path)
        self.clock = MovedClock(at)
        path.mkdir(parents=True)
        stages = [{"name": n, "evaluates": False, "reserve_s": None} for n in _STAGES]
        _write(path / "spec.json", {"experiment": path.name, "stages": stages, "cluster": {}})
        self.claim = take_claim(self.run)
        write_holder(self.run, self.claim, job="p-01", start=1, at=self.clock.wall())
        self._boss = self._log("supervisor")
        self._boss.add("attempt-started", job="p-01", start=1, gpus=1, price_per_gpu_hour=None)
        self._boss.add("worker-started", phase="train", stage=_STAGES[0], ranks=1)
        self._rank, self._figures = self._log("rank0"), self._log("machine")
        self._metrics = MetricLog(self.run, claim=self.claim, clock=self.clock)
        self._began, self.step = self.clock.wall(), 0

    def _log(self, who: str) -> EventLog:
        return EventLog(self.run, claim=self.claim, node=0, who=who, clock=self.clock)

    def work(self, steps: int, *, rows: int) -> None:
        """Go on: some lines of metrics, and a sign of life."""
        for number in range(rows):
            self._metrics.add(
                {
                    "stage": _STAGES[0],
                    "epoch": 0,
                    "step": self.step + number * steps // max(1, rows) + 1,
                    "samples": self.step * 8,
                    "split": "train",
                    "loss": 1.0 / (self.step + 1),
                    "lr": 0.001,
                    "samples_per_sec": 812.5,
                    "memory_allocated_gb": 1.25,
                }
            )
        self.step += steps
        lived = self.clock.wall() - self._began
        self._rank.add(
            "progress",
            stage=_STAGES[0],
            epoch=0,
            step=self.step,
            total_steps=TOTAL,
            samples=self.step * 8,
            from_step=0,
            loss=1.0 / (self.step + 1),
            step_s=0.01,
            lived_s=lived,
            parts={"start": 3.0, "step": max(0.0, lived - 3.0)},
        )

    def tell_figures(self) -> None:
        facts: dict[str, Any] = {"cpu_percent": 98.5, "rss_bytes": 1 << 30, "host_bytes": 1 << 34}
        self._figures.add("machine", phase="train", stage=_STAGES[0], gpus=[], **facts)

    def finish(self) -> None:
        self._boss.add("complete")
        facts = {"ending": "done", "cause": "none", "message": "", "has_progressed": True}
        self._boss.add("attempt-ended", **facts)
        end = {**facts, "hint": "", "has_stepped": True, "at": self.clock.wall()}
        write_attempt_end(self.run, self.claim, end)
        for name in _STAGES:
            folder = self.run.stage(name).path
            folder.mkdir(parents=True)
            _write(folder / "metrics.json", {"stage": name, "steps": 100, "last": {"loss": 0.5}})
        _write(self.run.training_state, {"stage": _STAGES[-1], "step": 100, "total_steps": 100})
        _write(self.run.marker, {"experiment": self.run.name})

    def close(self) -> None:
        for log in (self._boss, self._rank, self._figures, self._metrics):
            log.close()


class MovedClock(SystemClock):
    """The system's, or one that is set by hand."""

    def __init__(self, at: float | None) -> None:
        self.at = at

    def wall(self) -> float:  # type: ignore[override]
        return time.time() if self.at is None else self.at


def make_finished(folder: Path, num: int) -> None:
    """So many runs that are done, with an hour of events each."""
    for number in range(num):
        fake = FakeRun(folder / f"run-{number:04d}", at=time.time() - 7200)
        for _ in range(20):
            fake.clock.at = (fake.clock.at or 0.0) + 180
            fake.work(100, rows=1)
        fake.finish()
        fake.close()


def make_running(path: Path, *, rows: int, hours: float) -> FakeRun:
    """One that runs since some hours, with so many lines of metrics."""
    at = time.time() - hours * 3600
    fake = FakeRun(path, at=at)
    signs = max(1, int(hours * 360))
    for number in range(signs):
        fake.clock.at = at + number * 10
        fake.work(100, rows=rows // signs)
        if number % 3 == 0:
            fake.tell_figures()
    fake.clock.at = None
    return fake


def _write(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps({"format": 1, **value}))


def cpu_s(pid: int) -> float:
    """CPU seconds of a process so far."""
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def environment() -> dict[str, str]:
    """As in a user's shell, with bytecode as an installed wheel has it."""
    dropped = ("PYTHONDONTWRITEBYTECODE", "COLUMNS", "LINES", "NO_COLOR")
    kept = {key: value for key, value in os.environ.items() if key not in dropped}
    return {**kept, "TERM": "xterm-256color", "TASUKI_SITE": ""}
