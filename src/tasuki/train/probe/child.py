"""`python -m tasuki.train.probe.child FD`: the probe file of a stage, for who asks (answers.py).

The order: {"stage": as plain values, "folder": the spec's, "device": "cuda" | "cpu", "ranks": 1,
"sizes": [] (those of the data)}. The answer: {"probe": a probe file, "untraced": null}, or
{"probe": null, "untraced": {"op", "reason"}} where an operation stands in the way, which is no
error: the figure has to be measured instead. One thread, behind everything else; no GPU is touched.
"""

from __future__ import annotations

import hashlib
import inspect
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import nn

from tasuki.answers import Told, answer
from tasuki.data.fetch import seed_everything
from tasuki.spec.resolved import ResolvedStage, stage_from_plain
from tasuki.train.exact import apply_settings
from tasuki.train.prepare import start_seed
from tasuki.train.probe.batches import Batches, Points, choose_points
from tasuki.train.probe.bounded import Bounds, Untraceable
from tasuki.train.probe.fit import Fit, fit
from tasuki.train.probe.key import probe_key
from tasuki.train.probe.steps import Device, opened
from tasuki.train.probe.trace import Trace
from tasuki.train.recipe import load_recipe

_NICE = 10


def work(order: dict[str, Any], told: Told) -> dict[str, Any]:
    os.nice(_NICE)
    warnings.simplefilter("ignore")
    stage = stage_from_plain(order["stage"])
    apply_settings(threads=1, exact=stage.exact)
    try:
        return {"probe": _probe(stage, order, told), "untraced": None}
    except Untraceable as error:
        return {"probe": None, "untraced": {"op": error.op, "reason": error.reason}}


def _probe(stage: ResolvedStage, order: dict[str, Any], told: Told) -> dict[str, Any]:
    assert stage.recipe is not None
    seed_everything(start_seed(stage, "model", 0))
    folder = Path(order["folder"])
    recipe = load_recipe(stage.recipe, stage.params, paths=[folder])
    batches = Batches(recipe, stage, sizes=order.get("sizes", ()))
    ranks = int(order.get("ranks", 1))
    traced = _Traced(recipe, stage, batches, device=order["device"], ranks=ranks)
    found = traced.fitted(choose_points(batches.sizes), told)
    if not found.is_exact and len(batches.sizes) > 1:
        traced.notes.append(
            f"memory is not a function of batch and size alone ({found.reason}): the figures are "
            f"those of the largest size, {batches.sizes[-1]}"
        )
        found = traced.fitted(choose_points(batches.sizes[-1:]), told)
    if not found.is_exact:
        traced.notes.append(f"steps of different batches differ: {found.reason}")
    key = probe_key(
        stage,
        code=_code_of(recipe, folder),
        torch=torch.__version__,
        device=order["device"],
        accumulates=_accumulates(stage, ranks),
        ranks=ranks,
        sizes=tuple(order.get("sizes", ())),
    )
    plain = found.to_plain()
    return {**plain, "key": key, "torch": torch.__version__, "notes": traced.all_notes()}


class _Traced:
    """Traces of one stage."""

    def __init__(
        self, recipe: Any, stage: ResolvedStage, batches: Batches, *, device: Device, ranks: int
    ) -> None:
        self._recipe, self._batches, self._device, self._ranks = recipe, batches, device, ranks
        self._accumulation = 2 if _accumulates(stage, ranks) else 1
        self._bounds = Bounds()
        self.notes: list[str] = []
        if stage.compile is not False:
            self.notes.append("traced as it is written: what `compile` saves is not in the figures")
            stage = msgspec.structs.replace(stage, compile=False)
        self._stage = stage

    def fitted(self, points: Points, told: Told) -> Fit:
        *used, held_back = self._traces(points, told)
        return fit(used, held_back=held_back)

    def _traces(self, points: Points, told: Told) -> list[Trace]:
        # The first is thrown away: the optimizer's states come in it.
        wanted = [points.used[0], *points.used, points.held_back]
        data = [self._batches.at(batch, size) for batch, size in wanted]
        found = []
        with opened(
            self._recipe, self._stage, device=self._device, bounds=self._bounds, ranks=self._ranks
        ) as traced:
            for number, (batch, size) in enumerate(wanted):
                told.progress("memory probe", number, len(wanted))
                found.append(
                    traced.trace(
                        data[number], batch=batch, size=size, accumulation=self._accumulation
                    )
                )
            self._look_at(traced.model)
        return found[1:]

    def _look_at(self, model: nn.Module) -> None:
        recurrent = any(isinstance(part, nn.RNNBase) for part in model.modules())
        note = "recurrent layers are traced as a CPU computes them: cuDNN's keep other tensors"
        if recurrent and self._device == "cuda" and note not in self.notes:
            self.notes.append(note)

    def all_notes(self) -> list[str]:
        return [*self.notes, *self._bounds.in_words()]


def _accumulates(stage: ResolvedStage, ranks: int) -> bool:
    """Gradients of earlier micro-batches lie there during the later ones."""
    if (stage.accumulation or 1) > 1:
        return True
    if stage.micro_batch == "auto" or stage.effective_batch is None:
        return False
    return stage.effective_batch > stage.micro_batch * ranks


def _code_of(recipe: Any, folder: Path) -> dict[str, str]:
    """Digests of the recipe's file and of whatever it has imported from the spec's folder."""
    files = {Path(inspect.getfile(type(recipe)))}
    for module in list(sys.modules.values()):
        path = getattr(module, "__file__", None)
        if path is not None and Path(path).is_relative_to(folder.resolve()):
            files.add(Path(path))
    return {
        file.name: hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(files)
        if file.is_file()
    }


if __name__ == "__main__":
    answer(work)
