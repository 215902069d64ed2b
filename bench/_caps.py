"""Is out of memory survived, wherever the wall stands?

Small versions of three examples (_caps_recipes.py) are trained under random caps on the memory of
their tensors, drawn between what a run in micro-batches of one sample takes at its peak and what a
free run takes. Each run is the real one, with supervisor and ranks, forked by the tests' server.
Asked of each:

    done      it ended in one start of its job, however often it ran out of memory
    samples   the account of used samples after every save is that of the free run
    weights   as close to those of the free run as rounding leaves them. Distances are shares of
              the way that training has gone. Allowed are 1e-4, or five times the distance between
              the free run and one in micro-batches of one sample, which is the same sums added up
              in another order: Adam makes steps of whole size of gradients that are mere rounding,
              so that neither has a bound of its own. One sample too many or too few in one step is
              about 1e-2 of the way here
    known     bit for bit (weights, optimizer, buffers, random states, metrics) a run without any
              cap that was told beforehand what this one decided on the way
    killed    killed at a random place and resumed under the same cap: bit for bit the same

With noise (dropout, BatchNorm) weights hang on the split, and only the others are asked. Used by
memory.py (`memory.py caps`).
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from safetensors.torch import load_file
from tests.harness.faulty import armed, used
from tests.harness.project import Project, differences, make_project
from tests.harness.warm import Warm, warm_server

from _caps_recipes import load
from _measure import print_table
from tasuki.checkpoint.lineage import list_checkpoints
from tasuki.runs.events import read_events

ROOT = Path(__file__).resolve().parent.parent
CAPS_EACH = 8
"""Caps under one setting: it is run freely and in single samples once."""
FREE = {"TASUKI_MEMORY_CAP": "1T"}
_STARTS = 4
_TIMES = 5.0
_FLOOR = 1e-4
_EVERY = 3
"""Saves, in steps."""
_KILLED_AT = ("step.forward", "step.optimizer", "step.done", "memory.decided", "save.published")
KINDS = ("Matrices", "Tokens", "Graphs")
_CODE = f"import sys\nsys.path.insert(0, {str(ROOT / 'bench')!r})\nfrom _caps_recipes import *\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What is trained, and how."""

    kind: str
    noise: bool
    optimizer: str
    precision: str
    ranks: int
    effective_batch: int
    micro_batch: int
    """Given: else the tuner would find one that fits."""
    checkpointing: bool
    epochs: int = 2

    def defaults(self, data: Path) -> dict[str, Any]:
        value: dict[str, Any] = {
            "params": {
                "data": str(data),
                "optimizer": self.optimizer,
                "noise": self.noise,
            },
            "effective_batch": self.effective_batch,
            "precision": self.precision,
            "save": {"every": f"{_EVERY} steps"},
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

    def alone(self) -> Setting:
        """One sample at once."""
        return replace(self, micro_batch=1)


def draw_setting(chance: random.Random, number: int) -> Setting:
    kind, noise = KINDS[number % 3], number % 4 == 3
    effective_batch = chance.choice([5, 6, 8, 12])
    return Setting(
        kind=kind,
        noise=noise,
        optimizer=chance.choice(["sgd", "adamw", "adam-foreach"]),
        precision=chance.choice(["fp32", "fp32", "bf16"]),
        ranks=2 if number % 6 == 5 else 1,
        effective_batch=effective_batch,
        micro_batch=chance.choice([effective_batch, effective_batch, -(-effective_batch // 2)]),
        checkpointing=chance.random() < 0.25,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What became of one case."""

    setting: Setting
    cap: int
    halvings: int = 0
    attempts: int = 0
    distance: float | None = None
    """From the weights of the free run, as a share of the way."""
    allowed: float | None = None
    is_known: bool = False
    """Compared with a run that was told."""
    is_killed: bool = False
    wrong: list[str] = field(default_factory=list)


class Bench:
    """Makes and ends runs, one after another, in a folder that stays small."""

    def __init__(self, warm: Warm, folder: Path, *, is_kept: bool) -> None:
        self._warm, self._folder, self._is_kept = warm, folder, is_kept
        self._count = 0
        self._data = folder / "data"
        generate = load("matrix_gnn", "generate")
        with contextlib.redirect_stdout(sys.stderr):
            generate.write_file(self._data / "train.h5", {6: 12, 12: 9, 24: 6}, "train", 1, "caps")

    def run(
        self, setting: Setting, told: Sequence[dict[str, Any]] = (), **environment: str
    ) -> Project:
        """To its end; `told` are decisions that it knows beforehand."""
        self._count += 1
        with contextlib.redirect_stdout(sys.stderr):
            project = make_project(
                self._folder / f"p{self._count}",
                recipe=setting.kind,
                code=_CODE,
                ranks=setting.ranks,
                stages=[{"name": "one", "data": "d", "epochs": setting.epochs}],
                defaults=setting.defaults(self._data),
            )
        if told:
            project.run.events.mkdir(exist_ok=True)
            lines = [json.dumps(event) + "\n" for event in told]
            (project.run.events / "0.0.before.jsonl").write_text("".join(lines))
        for _ in range(_STARTS):
            if self._warm.start(project.job.path, **environment).wait() != 75:
                break
        return project

    def drop(self, *projects: Project) -> None:
        for project in projects if not self._is_kept else ():
            shutil.rmtree(project.folder, ignore_errors=True)


def weights_of(project: Project) -> dict[str, Any]:
    return load_file(project.run.stage("one").weights)


def begun_with(project: Project) -> dict[str, Any]:
    """The stage's first weights, from its first checkpoint."""
    from tasuki.checkpoint.parts import read_part
    from tasuki.checkpoint.verify import read_manifest

    first = min(list_checkpoints(project.run), key=lambda parsed: parsed.order)
    path = project.run.checkpoints / str(first)
    state = read_part(path, 0, records=read_manifest(path).files)
    return dict(state["shared"]["model"])


def distance(one: dict[str, Any], other: dict[str, Any], begin: dict[str, Any]) -> float:
    """Between two ends, as a share of the way from the beginning to the second."""
    names = [name for name, tensor in one.items() if tensor.is_floating_point()]
    apart = math.fsum(float((one[n].double() - other[n].double()).square().sum()) for n in names)
    way = math.fsum(float((other[n].double() - begin[n].double()).square().sum()) for n in names)
    return math.sqrt(apart / way)


def decisions(project: Project) -> list[dict[str, Any]]:
    return [event for event in read_events(project.run) if event["kind"] == "micro-batch"]


def _account(project: Project) -> dict[int, str]:
    """Of used samples, at the steps of saves that are due: restarts may make others."""
    steps = {step: told for (_, step), told in used(project.run).items()}
    last = max(steps)
    return {step: told for step, told in steps.items() if step % _EVERY == 0 or step == last}


def _split(project: Project) -> list[tuple[int, int, int]]:
    return [(e["bucket"], e["from_step"], e["most"]) for e in decisions(project)]


def attempts(project: Project) -> int:
    return sum(event["kind"] == "attempt-ended" for event in read_events(project.run))


def peak_of(project: Project) -> int:
    return int((project.run.path / "peak").read_text())


class Subject:
    """One setting: its free run, the one in single samples, and what lies between."""

    def __init__(self, bench: Bench, setting: Setting) -> None:
        self.bench, self.setting = bench, setting
        self.free, self.alone = bench.run(setting, **FREE), bench.run(setting.alone(), **FREE)
        for project in (self.free, self.alone):
            if not project.run.is_complete():
                sys.exit(f"error: {setting} does not run without a cap\n{project.logs()[-4000:]}")
        self.most, self.least = peak_of(self.free), peak_of(self.alone)
        self.begin = begun_with(self.free)
        self.own = distance(weights_of(self.alone), weights_of(self.free), self.begin)
        self.allowed = max(_FLOOR, _TIMES * self.own)

    def examine(self, chance: random.Random, number: int) -> Found:
        """One cap. Every third case is compared with a run that knew, every fourth is killed."""
        share = 0.0 if number % CAPS_EACH == 0 else chance.random()
        cap = int(self.least * (max(self.most, self.least) / self.least) ** share)
        limit = {"TASUKI_MEMORY_CAP": f"{cap}B"}
        capped = self.bench.run(self.setting, **limit)
        wrong, told = [], decisions(capped)
        found = Found(setting=self.setting, cap=cap, halvings=len(told), attempts=attempts(capped))
        if not capped.run.is_complete():
            return replace(found, wrong=["not done", capped.logs()[-3000:]])
        if _account(capped) != _account(self.free):
            wrong.append("samples")
        if not self.setting.noise:
            apart = distance(weights_of(capped), weights_of(self.free), self.begin)
            found = replace(found, distance=apart, allowed=self.allowed)
            if not apart <= self.allowed:
                wrong.append(f"weights {apart:.2g}")
        if told and (self.setting.noise or number % 3 == 0):
            found = replace(found, is_known=True)
            knowing = self.bench.run(self.setting, told)
            wrong += [f"known: {what}" for what in differences(knowing, capped)]
            self.bench.drop(knowing)
        if number % 4 == 1:
            found = replace(found, is_killed=True)
            wrong += self._kill(capped, limit, chance)
        self.bench.drop(capped)
        return replace(found, wrong=wrong)

    def _kill(self, capped: Project, limit: dict[str, str], chance: random.Random) -> list[str]:
        place, count = chance.choice(_KILLED_AT), chance.randint(1, 6)
        rank = chance.randrange(self.setting.ranks)
        order = {"at": place, "do": "kill", "count": count, "claim": 1, "rank": rank}
        killed = self.bench.run(self.setting, **limit, **armed(order))
        if not killed.run.is_complete():
            return [f"killed at {place}: not done", killed.logs()[-3000:]]
        twin = capped
        if _split(killed) != _split(capped):  # a resumed process holds other things beside it
            twin = self.bench.run(self.setting, decisions(killed))
        wrong = [f"killed at {place} {count}: {what}" for what in differences(twin, killed)]
        self.bench.drop(killed, *([twin] if twin is not capped else []))
        return wrong

    def close(self) -> None:
        self.bench.drop(self.free, self.alone)


def measure(cases: int = 200, seed: int = 0) -> dict[str, Any]:
    """All cases, and a table of them. BENCH_CASES=24: fewer."""
    asked = os.environ.get("BENCH_CASES", "")
    cases = int(asked) if asked.isdecimal() else cases
    chance, began, found = random.Random(seed), time.monotonic(), []
    kept = os.environ.get("BENCH_KEEP")
    with tempfile.TemporaryDirectory(prefix="tasuki-caps-") as name:
        folder = Path(kept or name)
        with warm_server(Path(name)) as warm:
            bench = Bench(warm, folder, is_kept=bool(kept))
            for number in range(cases):
                if number % CAPS_EACH == 0:
                    setting = draw_setting(chance, number // CAPS_EACH)
                    subject = Subject(bench, setting)
                found.append(subject.examine(chance, number))
                for what in found[-1].wrong:
                    print(f"case {number}: {what}\n{found[-1].setting}", file=sys.stderr)
                if number % CAPS_EACH == CAPS_EACH - 1 or number == cases - 1:
                    subject.close()
    result = summarise(found)
    result["seconds"] = round(time.monotonic() - began, 1)
    show(result)
    return result


def summarise(found: list[Found]) -> dict[str, Any]:
    rows = {}
    for kind in KINDS:
        for noise in (False, True):
            own = [one for one in found if (one.setting.kind, one.setting.noise) == (kind, noise)]
            if own:
                rows[f"{kind.lower()}{', noise' if noise else ''}"] = _sum_up(own)
    return {"cases": len(found), "rows": rows, "all": _sum_up(found)}


def _sum_up(own: list[Found]) -> dict[str, Any]:
    apart = {
        name: max(
            (
                one.distance
                for one in own
                if one.distance is not None and one.setting.precision == name
            ),
            default=None,
        )
        for name in ("fp32", "bf16")
    }
    return {
        "cases": len(own),
        "with_halvings": sum(one.halvings > 0 for one in own),
        "halvings": sum(one.halvings for one in own),
        "restarts": sum(max(0, one.attempts - 1) for one in own),
        "not_done": sum("not done" in one.wrong for one in own),
        "known": sum(one.is_known for one in own),
        "killed": sum(one.is_killed for one in own),
        "wrong": sum(bool(one.wrong) for one in own),
        "farthest": apart,
    }


def show(result: dict[str, Any]) -> None:
    rows = {**result["rows"], "all": result["all"]}
    print_table(
        f"Random caps on the memory of tensors ({result['seconds']:.0f} s)",
        [
            *("example", "cases", "hit", "halvings", "restarts", "crashes"),
            *("as told", "killed", "wrong", "farthest, fp32", "bf16"),
        ],
        [
            [
                name,
                *(
                    str(row[key])
                    for key in (
                        *("cases", "with_halvings", "halvings", "restarts", "not_done"),
                        *("known", "killed", "wrong"),
                    )
                ),
                *("–" if far is None else f"{far:.1e}" for far in row["farthest"].values()),
            ]
            for name, row in rows.items()
        ],
    )


if __name__ == "__main__":
    measure(seed=int(os.environ.get("BENCH_SEED") or 0))
