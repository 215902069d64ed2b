"""A run's folder written by hand, word for word: for readers of it, and in no time."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tasuki.runs.atomic import write_json
from tasuki.runs.attempts import write_attempt_end, write_holder
from tasuki.runs.claims import take_claim
from tasuki.runs.events import EventLog
from tasuki.runs.runs import RunFolder
from tasuki.spec.frozen import frozen_value
from tasuki.spec.load import load_command
from tasuki.testing import FakeClock


class WrittenRun:
    """Of one stage `train`, by a script of one's own; nothing has begun."""

    def __init__(
        self, runs: Path, clock: FakeClock, name: str = "exp", settings: Sequence[str] = ()
    ) -> None:
        self.run = RunFolder(runs / name)
        self.clock = clock
        self.claim = 0
        self.run.path.mkdir(parents=True)
        spec = load_command(["python", "train.py"], settings=settings, environ={})
        value = frozen_value(spec.experiments[0], spec, code="")
        write_json(self.run.spec, {"format": 1, **value})

    def begin(self, *, job: str = "", is_alive: bool = True) -> int:
        """An attempt of this process; without a job a script's by itself."""
        self.claim = take_claim(self.run)
        write_holder(self.run, self.claim, job=job, start=1, at=self.clock.wall())
        if not is_alive:
            path = self.run.claims / str(self.claim) / "holder.json"
            write_json(path, {**json.loads(path.read_text()), "born": "0"})
        self.tell("attempt-started")
        return self.claim

    def end(self, **told: Any) -> None:
        value = {"ending": "handed-over", "cause": "interrupted", "message": "SIGINT", **told}
        write_attempt_end(self.run, self.claim, {**value, "at": self.clock.wall()})
        self.tell("attempt-ended", **value)

    def tell(self, kind: str, *, who: str = "supervisor", **facts: Any) -> None:
        events = EventLog(self.run, claim=self.claim, node=0, who=who, clock=self.clock)
        events.add(kind, **facts)
        events.close()

    def log(self, step: int, **numbers: Any) -> None:
        """A line of metrics."""
        self.run.metrics.mkdir(exist_ok=True)
        line = {"t": self.clock.wall(), "attempt": self.claim, "stage": "train", "epoch": 0}
        line |= {"step": step, "split": "train", **numbers}
        with (self.run.metrics / f"{self.claim}.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")

    def finish(self, stage: str = "train", *, metrics: dict[str, Any] | None = None) -> None:
        """A stage is trained, and what it came to."""
        folder = self.run.stage(stage)
        folder.path.mkdir(parents=True)
        value = {"format": 1, "steps": 4, "epochs": 1, "samples": 8, "last": {"loss": 0.5}}
        write_json(folder.metrics, {**value, "wall_s": 9.0})
        if metrics is not None:
            write_json(folder.evaluation, {"format": 1, "metrics": metrics})

    def print(self, text: str, *, job: str = "j") -> None:
        """Into the newest attempt's log, as it is."""
        self.run.logs.mkdir(exist_ok=True)
        with (self.run.logs / f"{job}.{self.claim}.log").open("a", newline="") as file:
            file.write(text)
