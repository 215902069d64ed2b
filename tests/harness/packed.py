"""Several small runs, and one job whose lanes they share."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from tasuki.clock import SystemClock
from tasuki.commands.compare import compare_runs
from tasuki.commands.discover import look_with
from tasuki.commands.plan import make_plan
from tasuki.commands.run import RunRequest, local_jobs, open_runs, take_up
from tasuki.runs.jobs import JobFolder, last_start, read_outcome
from tasuki.runs.runs import RunFolder
from tasuki.spec.load import load_spec
from tests.harness.project import RECIPES, all_of
from tests.harness.traced import CODE

WITHIN_S = 60.0


@dataclass(frozen=True)
class Packed:
    folder: Path
    runs: dict[str, RunFolder]
    alone: dict[str, JobFolder]
    """Each run's own job, for the twin that is not packed."""
    job: JobFolder

    def pack(self, lanes: list[tuple[Sequence[int], list[dict]]], **more: object) -> None:
        """Write the job that works on all: lanes of items, ids in the order in which they stand."""
        value = json.loads(next(iter(self.alone.values())).lanes.read_text())
        known = {"until": None, "continued": False, "after": [], "seconds": 10.0, "start_s": None}
        number = iter(range(1000))
        value["lanes"] = [
            {
                "gpus": list(gpus),
                "items": [{"id": next(number), **known, "cpus": 1, **item} for item in items],
            }
            for gpus, items in lanes
        ]
        self.job.path.mkdir(parents=True, exist_ok=True)
        width = 1 + max(gpu for gpus, _ in lanes for gpu in gpus)
        self.job.lanes.write_text(json.dumps({**value, "gpus": width, "cpus": width, **more}))

    def outcome(self) -> dict:
        return read_outcome(self.job, last_start(self.job)) or {}

    def attempts(self, name: str) -> list[dict]:
        return [event for event in self.events(name) if event["kind"] == "attempt-started"]

    def events(self, name: str) -> list[dict]:
        paths = sorted(self.runs[name].events.glob("*.jsonl"))
        told = [json.loads(line) for path in paths for line in path.read_text().splitlines()]
        return sorted(told, key=lambda event: event["t"])

    def at(self, name: str, kind: str) -> float:
        """When something was told of a run, first."""
        return next(event["t"] for event in self.events(name) if event["kind"] == kind)

    def steps(self, name: str) -> int:
        return sum(path.stat().st_size for path in self.runs[name].path.glob("diary.*"))

    def wait(self, is_so: Callable[[], object], what: str = "so") -> None:
        until = time.monotonic() + WITHIN_S
        while not is_so():
            assert time.monotonic() < until, f"not {what}:\n{self.logs()}"
            time.sleep(0.01)

    def logs(self) -> str:
        paths = [p for run in self.runs.values() for p in sorted(run.logs.glob("*"))]
        paths += sorted(self.job.path.glob("*.log")) + sorted(self.job.path.glob("outcome.*"))
        return "\n".join(f"== {path}\n{path.read_text()}" for path in paths)

    def differences(self, other: Packed) -> dict[str, list[str]]:
        """What is not bit for bit the same, by run."""
        found = {}
        for name, run in self.runs.items():
            stages = [stage["name"] for stage in json.loads(run.spec.read_text())["stages"]]
            checks = compare_runs(run, other.runs[name], stages).checks
            found[name] = [what for what, is_equal in checks if not is_equal]
        return {name: what for name, what in found.items() if what}


def make_packed(folder: Path, experiments: dict[str, dict], **cluster: object) -> Packed:
    """Written, planned and frozen; nothing started. A stage that is not given has 24 steps."""
    folder.mkdir(parents=True)
    (folder / "recipes.py").write_text(RECIPES + CODE)
    stages = {"stages": [{"name": "one", "data": "d", "epochs": 4}]}
    value = {
        "project": "t",
        "recipe": "recipes:Traced",
        "cluster": {"gpu": "cpu", "gpus": 1, "cpus": 1, "grace": "30s", **cluster},
        "defaults": {"effective_batch": 8, "seed": 5, "save": {"every": "7 steps"}},
        "experiments": {name: {**stages, **asked} for name, asked in experiments.items()},
    }
    (folder / "tasuki.yaml").write_text(json.dumps(value))
    look = look_with(python=sys.executable, environment=dict(os.environ))
    spec = load_spec(str(folder), environ={}, look=look)
    request = RunRequest(plan=all_of(spec), clock=SystemClock())
    folders = open_runs(request)
    take_up(folders, request)
    for run in folders.values():
        run.runner.unlink(missing_ok=True)  # nobody stays to work on them
    written = local_jobs(make_plan(request.plan), folders, request)
    alone = {made.runs[0].name: made.folder for made in written}
    # By its name a job is found in a queue, which several tests share.
    job = JobFolder(written[0].folder.path.parent / f"packed-{uuid4().hex[:8]}-01")
    return Packed(folder, folders, alone, job)
