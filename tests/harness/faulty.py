"""Recipes that go wrong on order, and what a run's own files say about what became of it."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from tests.harness.project import Project, make_project

from tasuki.checkpoint.lineage import lineage, list_checkpoints
from tasuki.checkpoint.verify import verify
from tasuki.store.runs import RunFolder
from tasuki.telemetry.events import read_events

CODE = '''
import hashlib
import torch.distributed as dist


class Diary(Learner):
    """Each rank writes down, before each forward pass of a step, what its model is."""

    def __init__(self, bad=(), bad_loss=(), diary=True, width=16, **more):
        super().__init__(**more)
        self.bad, self.bad_loss, self.diary, self.width = set(bad), set(bad_loss), diary, width

    def build_model(self):
        return nn.Sequential(
            nn.Linear(6, self.width), self.norm(self.width), nn.ReLU(), nn.Dropout(0.2),
            nn.Linear(self.width, 1),
        )

    def build_dataset(self, source, split):
        return Spoilt(self.samples, self.bad if split != "val" else ())

    def loss(self, model, batch):
        if self.diary and model.training:
            self.note(model)
        found = super().loss(model, batch)
        return found

    def note(self, model):
        rank = dist.get_rank() if dist.is_initialized() else 0
        sha = hashlib.sha256()
        for tensor in model.parameters():
            sha.update(tensor.detach().numpy().tobytes())
        name = f"{os.environ['TASUKI_RUN']}/diary.{os.environ['TASUKI_ATTEMPT']}.{rank}"
        with open(name, "a") as diary:
            diary.write(sha.hexdigest()[:16] + "\\n")


class Spoilt(Noisy):
    """Some samples are NaN, always."""

    def __init__(self, n, bad):
        super().__init__(n)
        self.bad = bad

    def __getitem__(self, i):
        x, y = super().__getitem__(i)
        return (x * float("nan") if i in self.bad else x), y


class Masked(Learner):
    """A loss that is infinite for one sample, with a gradient that is finite: cross entropy of a
    class whose logit is masked."""

    def loss(self, model, batch):
        x, y = batch
        found = nn.functional.mse_loss(model(x), y)
        self.calls += 1
        return found + float("inf") if self.calls == 9 else found


class Adapted(Learner):
    """A large frozen part and a small one that learns, as LoRA has it."""

    def __init__(self, wide=256, teach=False, unfreeze_at=None, **more):
        super().__init__(**more)
        self.wide, self.teach, self.unfreeze_at = wide, teach, unfreeze_at

    def build_model(self):
        model = nn.ModuleDict({
            "base": nn.Sequential(nn.Linear(6, self.wide), nn.ReLU(), nn.Linear(self.wide, self.wide)),
            "head": nn.Sequential(nn.Linear(self.wide, 8), nn.Dropout(0.1), nn.Linear(8, 1)),
        })
        model["base"].requires_grad_(False)
        return model

    def build_optimizer(self, model):
        return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)

    def loss(self, model, batch):
        self.calls += 1
        if self.pause:
            time.sleep(self.pause)
        x, y = batch
        if self.teach and model.training:
            # A teacher that follows by a moving average: no gradient, and no version counter.
            for p in model["base"].parameters():
                p.data.mul_(0.999).add_(0.001 * model["head"][0].weight.data.mean())
        return nn.functional.mse_loss(model["head"](model["base"](x)), y)
'''


def make_faulty(folder: Path, **more: Any) -> Project:
    """One stage of 24 steps, unless asked otherwise."""
    return make_project(folder, recipe=more.pop("recipe", "Diary"), code=CODE, **more)


def armed(*orders: dict[str, Any]) -> dict[str, str]:
    return {"TASUKI_FAILPOINTS": json.dumps(orders)}


def finish(warm, project: Project, *, starts: int = 4, **environment: str) -> None:
    """To the end; a start that is not complete must have left itself to the next."""
    for _ in range(starts):
        status = warm.start(project.job.path, **environment).wait()
        if project.run.is_complete():
            return
        assert status == 75, project.logs()
    raise AssertionError(project.logs())


def events(project: Project, *kinds: str) -> list[dict[str, Any]]:
    return [event for event in read_events(project.run) if event["kind"] in kinds]


def diaries(project: Project, claim: int) -> list[list[str]]:
    """By rank: what the model was before each forward pass of this attempt."""
    paths = sorted(project.run.path.glob(f"diary.{claim}.*"))
    return [path.read_text().split() for path in paths]


def acknowledged(run: RunFolder) -> list[str]:
    """Names of checkpoints that were said to be durable, in the order in which it was said."""
    return [e["checkpoint"] for e in read_events(run) if e["kind"] == "committed"]


def check_acknowledged(run: RunFolder, told: list[str], pruned: set[str]) -> None:
    """The newest that was acknowledged before a kill is there, whole and in the lineage; so is
    every other one that nobody pruned."""
    kept = [name for name in told if name not in pruned]
    assert not told or told[-1] not in pruned, f"the newest, {told[-1]}, was pruned"
    there = {str(parsed) for parsed in list_checkpoints(run)}
    line = lineage(run)
    for name in kept:
        assert name in there, f"{name} was acknowledged and is gone"
        assert name in line, f"{name} was acknowledged and is not in the lineage {line}"
        verify(run.checkpoints / name)


def pruned(run: RunFolder) -> set[str]:
    return {name for e in read_events(run) if e["kind"] == "pruned" for name in e["checkpoints"]}


def leftovers(run: RunFolder) -> list[str]:
    """What a killed attempt leaves half-written."""
    found = [path for path in run.path.rglob(".*") if path.name != ".cache"]
    found += run.path.rglob("best-draft*")
    return sorted(str(path.relative_to(run.path)) for path in found)


def checkpoint_bytes(run: RunFolder) -> int:
    """On disk, under `checkpoints`, whatever it is called; what vanishes meanwhile counts 0."""
    total = 0
    for folder, _, names in os.walk(run.checkpoints):
        for name in names:
            try:
                total += os.stat(os.path.join(folder, name)).st_size  # noqa: PTH116, PTH118
            except FileNotFoundError:
                continue
    return total


def wait_until(is_so, project: Project, *, within_s: float = 60.0, every_s: float = 0.002) -> None:
    until = time.monotonic() + within_s
    while not is_so():
        assert time.monotonic() < until, project.logs()
        time.sleep(every_s)
