"""A small project whose runs are easy to disturb and to compare."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasuki.clock import SystemClock
from tasuki.commands.compare import Comparison, compare_runs
from tasuki.commands.discover import look_with
from tasuki.commands.machine import Machine
from tasuki.commands.plan import PlanRequest, choose_experiments, make_plan
from tasuki.commands.run import RunRequest, local_jobs, open_runs, take_up
from tasuki.runs.jobs import JobFolder
from tasuki.runs.runs import RunFolder
from tasuki.spec.load import load_spec
from tasuki.spec.resolved import ResolvedSpec

RECIPES = '''
import os, random, signal, time
import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset


class Noisy(Dataset):
    """Every sample draws from all three random generators."""

    def __init__(self, n):
        g = torch.Generator().manual_seed(n)
        self.x = torch.randn(n, 6, generator=g)
        self.y = self.x[:, :2].sum(1, keepdim=True)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        x = self.x[i] + 0.01 * torch.randn(6)
        x = x + 0.01 * random.random() + 0.01 * float(np.random.rand())
        return x, self.y[i]


class Learner:
    """Dropout and BatchNorm: state and random numbers that a sloppy resume loses."""

    def __init__(self, samples=44, pause=0.0, norm="batch", fail_at=None, fail_file=None):
        self.samples, self.pause, self.fail_at, self.fail_file = samples, pause, fail_at, fail_file
        self.norm = {"batch": nn.BatchNorm1d, "layer": nn.LayerNorm}[norm]
        self.calls = 0

    def build_model(self):
        return nn.Sequential(
            nn.Linear(6, 16), self.norm(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 1)
        )

    def build_dataset(self, source, split):
        return Noisy(self.samples)

    def loss(self, model, batch):
        self.calls += 1
        if self.pause:
            time.sleep(self.pause)
        if self.fail_at is not None and self.calls == self.fail_at + 1:
            if self.fail_file is None or os.path.exists(self.fail_file):
                raise ValueError(f"planted failure in call {self.calls}")
        x, y = batch
        return nn.functional.mse_loss(model(x), y)


class Counter:
    """w[i] loses 1/(samples of a step) each time sample i is used: exactly once shows."""

    def __init__(self, samples=64, pause=0.0):
        self.samples, self.pause = samples, pause

    def build_model(self):
        model = nn.Module()
        model.w = nn.Parameter(torch.zeros(self.samples))
        return model

    def build_dataset(self, source, split):
        return list(range(self.samples))

    def loss(self, model, batch):
        if self.pause:
            time.sleep(self.pause)
        return model.w[batch].sum(), float(len(batch))

    def build_optimizer(self, model):
        return torch.optim.SGD(model.parameters(), lr=1.0)
'''


@dataclass(frozen=True)
class Project:
    """A project on disk, one run of it, and its job."""

    folder: Path
    run: RunFolder
    job: JobFolder
    stages: list[str]

    def set_ranks(self, ranks: int) -> None:
        """The next start of the job has another number of ranks."""
        value = json.loads(self.job.lanes.read_text())
        value["lanes"][0]["gpus"] = list(range(ranks))
        self.job.lanes.write_text(json.dumps(value))

    def logs(self) -> str:
        paths = sorted(self.run.logs.glob("*")) + sorted(self.job.path.glob("*.log"))
        return "\n".join(f"== {path.name}\n{path.read_text()}" for path in paths)


def all_of(spec: ResolvedSpec, **more: Any) -> PlanRequest:
    """All that a spec asks for, on two CPUs, unmeasured."""
    return PlanRequest(
        spec=spec,
        experiments=choose_experiments(spec, (), ()),
        stages=(),
        machine=Machine("cpu", 0, 2),
        python=sys.executable,
        environment=dict(os.environ),
        measure=False,
        **more,
    )


def make_project(
    folder: Path,
    *,
    recipe: str = "Learner",
    params: dict | None = None,
    stages: list[dict] | str | None = None,
    ranks: int = 1,
    defaults: dict | None = None,
    cluster: dict | None = None,
    code: str = "",
    files: Mapping[str, str] | None = None,
    **top: object,
) -> Project:
    """Written, planned and frozen; nothing started."""
    folder.mkdir(parents=True)
    (folder / "recipes.py").write_text(RECIPES + code)
    for name, text in (files or {}).items():
        (folder / name).write_text(text)
    value = {
        "project": "t",
        "recipe": f"recipes:{recipe}",
        "cluster": {"gpu": "cpu", "gpus": ranks, "cpus": ranks, "grace": "30s", **(cluster or {})},
        "defaults": {
            "params": params or {},
            "effective_batch": 8,
            "seed": 5,
            "log_every": "3 steps",
            "save": {"every": "7 steps"},
            **(defaults or {}),
        },
        **top,
        "experiments": {"exp": {"stages": stages or [{"name": "one", "data": "d", "epochs": 4}]}},
    }
    (folder / "tasuki.yaml").write_text(json.dumps(value))  # JSON is YAML
    look = look_with(python=sys.executable, environment=dict(os.environ))
    spec = load_spec(str(folder), environ={}, look=look)
    request = RunRequest(plan=all_of(spec), clock=SystemClock())
    folders = open_runs(request)
    take_up(folders, request)
    jobs = local_jobs(make_plan(request.plan), folders, request)
    names = [stage.name for stage in spec.experiments[0].stages]
    return Project(folder, folders["exp"], jobs[0].folder, names)


def differences(one: Project, other: Project) -> list[str]:
    """What is not bit for bit the same."""
    comparison: Comparison = compare_runs(one.run, other.run, one.stages)
    return [what for what, is_equal in comparison.checks if not is_equal]
