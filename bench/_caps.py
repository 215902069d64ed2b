"""`caps`: is out of memory survived, wherever the limit is?

Small versions of three examples (_caps_recipes.py) are trained under random caps on the memory of
their tensors, drawn between the peak of a run in micro-batches of one sample and that of a free
run. Each run is the real one, with supervisor and ranks, forked by the tests' server. For each:

    done      it ended in one start of its job, however often it ran out of memory
    samples   the used samples at every save are those of the free run
    weights   as close to those of the free run as rounding leaves them. Distances are relative to
              the length of the way that training has gone. Allowed are 1e-4, or five times the
              distance between the free run and one in micro-batches of one sample: those are the
              same sums, added up in another order. Adam makes full steps from gradients that are
              mere rounding, so neither distance has a bound. One sample too many or too few in one
              step is about 1e-2 here

`BENCH_CASES` sets the number of runs. A part of memory.py.
"""

from __future__ import annotations

import contextlib
import math
import random
import shutil
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from _peers import BENCH, ROOT

sys.path.insert(0, str(ROOT))

from safetensors.torch import load_file
from tests.harness.faulty import used
from tests.harness.project import Project, make_project
from tests.harness.warm import Warm, warm_server

from _caps_recipes import load
from _measure import Figure, sized
from tasuki.checkpoint.lineage import list_checkpoints
from tasuki.checkpoint.parts import read_part
from tasuki.checkpoint.verify import read_manifest
from tasuki.runs.events import read_events

NUM_CASES = sized(200, smoke=1, variable="BENCH_CASES")
CAPS_EACH = 8
"""Caps under one setting, which is run freely and in single samples once."""
FREE = {"TASUKI_MEMORY_CAP": "1T"}
KINDS = ("Matrices", "Tokens", "Graphs")
SAVE_EVERY = 3
_FLOOR, _TIMES = 1e-4, 5.0
_MAX_STARTS = 4
_CODE = f"import sys\nsys.path.insert(0, {str(BENCH)!r})\nfrom _caps_recipes import *\n"


def measure(folder: Path) -> list[Figure]:
    chance = random.Random(0)
    results: list[Result] = []
    with warm_server(folder) as warm:
        runner = Runner(warm, folder)
        for number in range(NUM_CASES):
            if number % CAPS_EACH == 0:
                reference = Reference(runner, draw_setting(chance, number // CAPS_EACH))
            results.append(reference.run_capped(chance, is_smallest=number % CAPS_EACH == 0))
            if number % CAPS_EACH == CAPS_EACH - 1:
                reference.close()
    num_wrong = sum(bool(result.wrong) for result in results)
    fp32 = [result.distance for result in results if result.precision == "fp32"]
    what = f"{NUM_CASES} runs under random caps on memory"
    if num_wrong:
        sys.exit(f"error: {num_wrong} of {what} were wrong")
    halvings = sum(result.num_halvings for result in results)
    distance = f"{max(fp32):.1e}" if fp32 else "no fp32 case"
    return [
        Figure(what, "the same without", "all done, every sample once", unit=""),
        Figure("… halvings of a micro-batch", "", float(halvings), unit="", digits=0),
        Figure("… farthest weights, fp32", "the length of their way", distance, unit=""),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What is trained, and how."""

    kind: str
    optimizer: str
    precision: str
    ranks: int
    effective_batch: int
    micro_batch: int
    """Given: else the tuner would find one that fits."""
    checkpointing: bool

    def defaults(self, data: Path) -> dict[str, Any]:
        value: dict[str, Any] = {
            "params": {"data": str(data), "optimizer": self.optimizer},
            "effective_batch": self.effective_batch,
            "precision": self.precision,
            "save": {"every": f"{SAVE_EVERY} steps"},
            "log_every": "2 steps",
        }
        if self.kind == "Graphs":  # the budget decides about micro-batches
            budget = {self.effective_batch: 100_000, 1: 1}.get(self.micro_batch, 3_000)
            value["buckets"] = {"cost": "nodes+edges", "budget": budget}
        else:
            value["micro_batch"] = self.micro_batch
        if self.kind == "Matrices":
            value["buckets"] = "exact"
        if self.checkpointing:
            names = {"Matrices": ["own.*"], "Tokens": ["blocks.*"], "Graphs": ["messages.*"]}
            value["gradient_checkpointing"] = names[self.kind]
        return value


def draw_setting(chance: random.Random, number: int) -> Setting:
    effective_batch = chance.choice([5, 6, 8, 12])
    return Setting(
        kind=KINDS[number % 3],
        optimizer=chance.choice(["sgd", "adamw", "adam-foreach"]),
        precision=chance.choice(["fp32", "fp32", "bf16"]),
        ranks=2 if number % 6 == 5 else 1,
        effective_batch=effective_batch,
        micro_batch=chance.choice([effective_batch, effective_batch, -(-effective_batch // 2)]),
        checkpointing=chance.random() < 0.25,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Of one run under a cap."""

    precision: str
    num_halvings: int
    distance: float
    wrong: list[str]


class Runner:
    """Makes and ends runs, one after another, in a folder that stays small."""

    def __init__(self, warm: Warm, folder: Path) -> None:
        self._warm, self._folder, self._count = warm, folder, 0
        self._data = folder / "data"
        generate = load("matrix_gnn", "generate")
        with contextlib.redirect_stdout(sys.stderr):
            generate.write_file(self._data / "train.h5", {6: 12, 12: 9, 24: 6}, "train", 1, "caps")

    def run(self, setting: Setting, environment: dict[str, str]) -> Project:
        """To its end."""
        self._count += 1
        with contextlib.redirect_stdout(sys.stderr):
            project = make_project(
                self._folder / f"p{self._count}",
                recipe=setting.kind,
                code=_CODE,
                ranks=setting.ranks,
                stages=[{"name": "one", "data": "d", "epochs": 2}],
                defaults=setting.defaults(self._data),
            )
        for _ in range(_MAX_STARTS):
            if self._warm.start(project.job.path, **environment).wait() != 75:
                break
        return project


class Reference:
    """One setting: its free run, the one in single samples, and the caps between them."""

    def __init__(self, runner: Runner, setting: Setting) -> None:
        self._runner, self._setting = runner, setting
        self._free = runner.run(setting, FREE)
        self._alone = runner.run(replace(setting, micro_batch=1), FREE)
        for project in (self._free, self._alone):
            if not project.run.is_complete():
                sys.exit(f"error: {setting} does not run without a cap\n{project.logs()[-4000:]}")
        self._start = first_weights(self._free)
        own = distance(weights_of(self._alone), weights_of(self._free), self._start)
        self._allowed = max(_FLOOR, _TIMES * own)

    def run_capped(self, chance: random.Random, *, is_smallest: bool) -> Result:
        low, high = peak_of(self._alone), peak_of(self._free)
        fraction = 0.0 if is_smallest else chance.random()
        cap = int(low * (max(high, low) / low) ** fraction)
        capped = self._runner.run(self._setting, {"TASUKI_MEMORY_CAP": f"{cap}B"})
        wrong, apart = [], math.inf
        if not capped.run.is_complete():
            wrong = ["not done", capped.logs()[-3000:]]
        else:
            apart = distance(weights_of(capped), weights_of(self._free), self._start)
            if used_samples(capped) != used_samples(self._free):
                wrong.append("samples")
            if not apart <= self._allowed:
                wrong.append(f"weights {apart:.2g}, allowed {self._allowed:.2g}")
        for what in wrong:
            print(f"{self._setting}, cap {cap}: {what}", file=sys.stderr)
        events = read_events(capped.run)
        shutil.rmtree(capped.folder, ignore_errors=True)
        return Result(
            precision=self._setting.precision,
            num_halvings=sum(event["kind"] == "micro-batch" for event in events),
            distance=apart,
            wrong=wrong,
        )

    def close(self) -> None:
        for project in (self._free, self._alone):
            shutil.rmtree(project.folder, ignore_errors=True)


def weights_of(project: Project) -> dict[str, Any]:
    return load_file(project.run.stage("one").weights)


def first_weights(project: Project) -> dict[str, Any]:
    """From the stage's first checkpoint."""
    first = min(list_checkpoints(project.run), key=lambda parsed: parsed.order)
    path = project.run.checkpoints / str(first)
    state = read_part(path, 0, records=read_manifest(path).files)
    return dict(state["shared"]["model"])


def distance(one: dict[str, Any], other: dict[str, Any], start: dict[str, Any]) -> float:
    """Between two ends, relative to the way from the start to the second."""
    names = [name for name, tensor in one.items() if tensor.is_floating_point()]
    apart = math.fsum(float((one[n].double() - other[n].double()).square().sum()) for n in names)
    way = math.fsum(float((other[n].double() - start[n].double()).square().sum()) for n in names)
    return math.sqrt(apart / way)


def used_samples(project: Project) -> dict[int, str]:
    """A digest at the steps of saves that are due: restarts may make others."""
    steps = {step: digest for (_, step), digest in used(project.run).items()}
    last = max(steps)
    return {step: steps[step] for step in steps if step % SAVE_EVERY == 0 or step == last}


def peak_of(project: Project) -> int:
    return int((project.run.path / "peak").read_text())
