"""tasuki's worker with the model of _gate.py: its loop, its saves, its restore.

Run as `python _save_ours.py MEGABYTES FOLDER`, a worker that takes the orders of save.py (see
_gate.py). `tasuki.train.worker.main` runs as a supervisor starts it; only its loader stops at the
gate before it yields a step. A save is what the loop does at a boundary where one is due
(`Saving.save`); a load is what an attempt does before its first step (`begin_or_resume`).
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

from _gate import AdaptedBlocks, Case, Gate, set_cache
from _peers import BENCH, ROOT

sys.path.insert(0, str(ROOT))

from tests.harness.project import Project, make_project

from tasuki.checkpoint.codec import first_difference
from tasuki.loop import state
from tasuki.runs.claims import take_claim
from tasuki.train import start, training, worker

_CODE = f"""
import sys
sys.path.insert(0, {str(BENCH)!r})
from _gate import LR, AdaptedBlocks, Batches, make_batch, make_model


class Large:
    def __init__(self, megabytes):
        self.megabytes = megabytes

    def build_model(self):
        return make_model(self.megabytes)

    def build_dataset(self, source, split):
        return Batches()

    def build_optimizer(self, model):
        return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=LR)

    def loss(self, model, batch):
        return model(batch["tokens"])


class Lora(Large):
    def build_model(self):
        return AdaptedBlocks()

    def build_dataset(self, source, split):
        return [{{"tokens": make_batch(1024)[0]}}] * 4
"""


def make(folder: Path, recipe: str, megabytes: int, *, steps: int) -> Project:
    return make_project(
        folder,
        recipe=recipe,
        params={"megabytes": megabytes},
        stages=[{"name": "one", "data": "made", "steps": steps}],
        defaults={"effective_batch": 1, "clip": 0, "save": {"every": "10h"}},
        code=_CODE,
    )


def work(project: Project) -> None:
    """As the process of a rank. Does not return."""
    arguments = {
        "job": project.job.path,
        "run": project.run.path,
        "claim": take_claim(project.run),
        "phase": "train",
        "stage": "one",
        "number": 1,
        "rank": 0,
        "world": 1,
    }
    worker.main([word for key, value in arguments.items() for word in (f"--{key}", str(value))])


class Save(Case):
    def __init__(self, loop: training.Training) -> None:
        self._loop = loop
        self._saver = loop.saving._saver

    def save(self) -> None:
        self._num_before = len(self._loop.task.watch.save_s)
        self._loop.saving.save()

    def is_busy(self) -> bool:
        return self._saver.is_busy

    def total_s(self, began: float, *, blocked_until: float) -> float:  # noqa: ARG002
        """As the saver says it; the loop hears of it at a boundary."""
        self._loop.saving.hear()
        known = self._loop.task.watch.save_s
        assert len(known) > self._num_before or len(known) == known.maxlen, "no save was heard of"
        return float(known[-1])


class GatedTraining(training.Training):
    """tasuki's loop, with the gate before each step."""

    folder: Path

    def _make_loader(self) -> Any:
        loader = super()._make_loader()
        steps = loader.steps
        others = {
            "load warm": lambda: self._load(is_warm=True),
            "load cold": lambda: self._load(is_warm=False),
            "lora": self._lora_bytes,
        }

        def gated() -> Iterator[Any]:
            given = steps()
            yield next(given)
            gate = Gate({"tasuki": Save(self)}, others)
            for item in given:
                gate.boundary()
                yield item

        loader.steps = gated  # type: ignore[method-assign]
        return loader

    def _load(self, *, is_warm: bool) -> dict[str, float]:
        """Seconds to find, verify and read the newest checkpoint and put it back; without those of
        capturing all of it again and comparing it with what was read."""
        files = (path for path in self.task.run.checkpoints.rglob("*") if path.is_file())
        set_cache(files, is_warm=is_warm)
        compared_s = 0.0

        def compare(*arguments: Any) -> Any:
            nonlocal compared_s
            started = time.perf_counter()
            difference = first_difference(*arguments)
            compared_s += time.perf_counter() - started
            return difference

        with patch.object(state, "first_difference", compare):
            started = time.perf_counter()
            start.begin_or_resume(
                self.task, self.setup, self.engine, self.saving._saver, self._fitting
            )
            taken = time.perf_counter() - started
        assert compared_s, "the restore did not compare: the patch misses it"
        return {"seconds": taken - compared_s}

    def _lora_bytes(self) -> dict[str, float]:
        project = make(self.folder / "lora", "Lora", 0, steps=4)
        if (pid := os.fork()) == 0:
            training.Training = GatedTraining.__base__  # type: ignore[misc, assignment]
            work(project)
            os._exit(1)
        _, status = os.waitpid(pid, 0)
        checkpoints = project.run.checkpoints
        newest = max(checkpoints.glob("step-*"), key=lambda path: path.name)
        assert status == 0 and newest.name.startswith("step-000000004"), project.logs()
        size = sum(path.stat().st_size for path in newest.rglob("*") if path.is_file())
        return {"bytes": size, "needed": AdaptedBlocks().needed_bytes()}


def main(megabytes: str, folder: str) -> None:
    GatedTraining.folder = Path(folder)
    training.Training = GatedTraining  # type: ignore[misc]
    work(make(Path(folder) / "project", "Large", int(megabytes), steps=1_000_000))


if __name__ == "__main__":
    main(*sys.argv[1:])
