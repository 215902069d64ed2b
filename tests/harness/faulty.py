"""Recipes that go wrong on order, and what a run's own files say about what became of it."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import psutil

from tasuki.checkpoint.lineage import lineage, list_checkpoints
from tasuki.checkpoint.manifest import parse_name
from tasuki.checkpoint.verify import verify
from tasuki.runs.events import read_events
from tasuki.runs.runs import RunFolder
from tests.harness.project import Project, make_project

CODE = '''
import hashlib
import torch.distributed as dist


class Diary(Learner):
    """Each rank writes down, before each forward pass of a step, what its model is."""

    def __init__(self, bad=(), bad_loss=(), diary=True, beat="", width=16, pause=0.0, **more):
        super().__init__(pause=0.0 if "TASUKI_TEST_HURRY" in os.environ else pause, **more)
        self.beat = beat
        self.bad, self.bad_loss, self.diary, self.width = set(bad), set(bad_loss), diary, width

    def build_model(self):
        return nn.Sequential(
            nn.Linear(6, self.width), self.norm(self.width), nn.ReLU(), nn.Dropout(0.2),
            nn.Linear(self.width, 1),
        )

    def build_dataset(self, source, split):
        if split == "val":
            return Spoilt(self.samples, (), ())
        return Spoilt(self.samples, self.bad, self.bad_loss)

    def loss(self, model, batch):
        if self.diary and model.training:
            self.note(model)
        if self.beat and model.training:  # on another disk: how a test sees that it trains
            with open(self.beat, "a") as beat:
                beat.write(".")
        x, y, extra = batch
        return super().loss(model, (x, y)) + extra.sum()

    def note(self, model):
        rank = dist.get_rank() if dist.is_initialized() else 0
        sha = hashlib.sha256()
        for tensor in model.parameters():
            sha.update(tensor.detach().numpy().tobytes())
        name = f"{os.environ['TASUKI_RUN']}/diary.{os.environ['TASUKI_ATTEMPT']}.{rank}"
        with open(name, "a") as diary:
            diary.write(sha.hexdigest()[:16] + "\\n")


class Spoilt(Noisy):
    """Some samples are NaN, always; some make the loss infinite, but not its gradient."""

    def __init__(self, n, bad, bad_loss):
        super().__init__(n)
        self.bad, self.bad_loss = bad, bad_loss

    def __getitem__(self, i):
        x, y = super().__getitem__(i)
        extra = float("inf") if i in self.bad_loss else 0.0
        return (x * float("nan") if i in self.bad else x), y, torch.tensor(extra)


class Settled(Learner):
    """Writes down, by attempt, what exactness hangs on."""

    def loss(self, model, batch):
        name = f"{os.environ['TASUKI_RUN']}/settings.{os.environ['TASUKI_ATTEMPT']}"
        with open(name, "w") as told:
            told.write(f"{torch.get_num_threads()} {torch.are_deterministic_algorithms_enabled()}")
        return super().loss(model, batch)


class Adapted(Learner):
    """A large frozen part and a small one that learns, as LoRA has it."""

    def __init__(
        self, wide=256, teach=False, unfreeze_at=None, move_at=None, pause=0.0, **more
    ):
        super().__init__(pause=0.0 if "TASUKI_TEST_HURRY" in os.environ else pause, **more)
        self.wide, self.teach, self.unfreeze_at = wide, teach, unfreeze_at
        self.move_at = move_at

    def build_model(self):
        wide = self.wide
        model = nn.Module()
        model.base = nn.Sequential(nn.Linear(6, wide), nn.ReLU(), nn.Linear(wide, wide))
        model.head = nn.Sequential(nn.Linear(wide, 32), nn.Dropout(0.1), nn.Linear(32, 1))
        model.register_buffer("count", torch.zeros((), dtype=torch.int64))
        model.base.requires_grad_(False)
        return model

    def build_optimizer(self, model):
        return torch.optim.AdamW(model.head.parameters(), lr=1e-3)

    def loss(self, model, batch):
        if self.pause:
            time.sleep(self.pause)
        x, y = batch
        if model.training:
            model.count += 1
            self.move_base(model)
        return nn.functional.mse_loss(model.head(model.base(x)), y)

    def move_base(self, model):
        is_unfrozen = self.unfreeze_at is not None and int(model.count) > self.unfreeze_at
        if is_unfrozen:
            model.base.requires_grad_(True)
        if int(model.count) == self.move_at:  # as a target network is moved now and then
            model.base[0].weight.data.add_(1.0)
        if is_unfrozen or self.teach:
            # A teacher that follows by a moving average: no gradient, and no version counter.
            for p in model.base.parameters():
                p.grad = None
                p.data.mul_(0.999).add_(0.001 * model.head[0].weight.data.mean())
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


def check_acknowledged(run: RunFolder) -> int:
    """After a kill: what was acknowledged last is there, whole and in the lineage, and whatever
    else is there is whole too. How many were acknowledged so far."""
    told = acknowledged(run)
    for parsed in list_checkpoints(run):
        verify(run.checkpoints / str(parsed))
    if told:
        assert (run.checkpoints / told[-1]).is_dir(), f"{told[-1]} was acknowledged and is gone"
        assert told[-1] in lineage(run), f"{told[-1]} is not in the lineage {lineage(run)}"
    return len(told)


def check_went_on(run: RunFolder) -> None:
    """No attempt went on from before what an earlier one had acknowledged."""
    newest: tuple[int, int, str] = (0, 0, "")
    claims = sorted({event["claim"] for event in read_events(run)})
    for claim in claims:
        own = [event for event in read_events(run) if event["claim"] == claim]
        for event in own:
            if event["kind"] == "restored":
                at = _place(event["checkpoint"])
                assert at >= newest[:2], f"attempt {claim} went back from {newest[2]} to {at}"
        told = [event["checkpoint"] for event in own if event["kind"] == "committed"]
        newest = max([newest, *((*_place(name), name) for name in told)])


def _place(name: str) -> tuple[int, int]:
    """Of a checkpoint in its run: by step; the first of a stage stands after the end before it."""
    parsed = parse_name(name)
    assert parsed is not None, name
    return parsed.order


def used(run: RunFolder) -> dict[tuple[str, int], str]:
    """By stage and step: the account of the samples it had used so far, as each save told it."""
    told = [event for event in read_events(run) if event["kind"] == "committed"]
    return {(event["stage"], event["step"]): str(event["used"]) for event in told}


def leftovers(run: RunFolder) -> list[str]:
    """What a killed attempt leaves half-written: drafts, trash, temporary files."""
    kinds = (".draft-*", ".trash-*", ".*.tmp", "best-draft*")
    found = [path for kind in kinds for path in run.path.rglob(kind)]
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


def stopped_ranks(supervisor: int) -> list[int]:
    """Those that have come to a failpoint that stops them."""
    try:
        ranks = psutil.Process(supervisor).children()
        return [rank.pid for rank in ranks if rank.status() == psutil.STATUS_STOPPED]
    except psutil.NoSuchProcess:
        return []
