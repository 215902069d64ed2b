"""The probe file of a stage: a child process of `estimate` and `plan` calls `work`.

The order: {"stage": as plain values, "folder": the spec's, "device": "cuda" | "cpu", "ranks": 1,
"sizes": [] (those of the data), "may_measure": false}. The answer: {"probe": a probe file,
"untraced": null, "unmeasured": null}, or {"probe": null, "untraced": {"op", "reason"}} where an
operation stands in the way, which is no error: the figure has to be measured instead. Where the
order says that it may, that is done here (measured.py): then there are both, and the file says on
what it was measured; or `unmeasured` says why real steps tell nothing either. One thread, behind
everything else; a GPU is touched only to measure.
"""

from __future__ import annotations

import hashlib
import inspect
import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import nn

from tasuki.data.fetch import seed_everything
from tasuki.loop.exact import apply_settings
from tasuki.memory.batches import Batches, Points, choose_points
from tasuki.memory.bounded import Bounds, Untraceable
from tasuki.memory.fit import Fit, Point, fit
from tasuki.memory.key import probe_key
from tasuki.memory.measured import RealSteps, Unmeasured
from tasuki.memory.steps import Device, opened
from tasuki.memory.trace import Trace
from tasuki.spec.resolved import ResolvedStage, stage_from_plain
from tasuki.subprocesses import Progress, ProgressCallback
from tasuki.train.footprint import count_bytes, tensors_in
from tasuki.train.prepare import start_seed
from tasuki.train.recipe import load_recipe

_NICE = 10
_MOST_OPS = 5_000
"""Of a step, to trace larger ones still: some seconds."""
MOST_BYTES = 256 << 20
"""Of a batch on the host, for a check far beyond the probes."""


def work(order: dict[str, Any], progress: ProgressCallback) -> dict[str, Any]:
    os.nice(_NICE)
    warnings.simplefilter("ignore")
    stage = stage_from_plain(order["stage"])
    apply_settings(threads=1, exact=stage.exact)
    assert stage.recipe is not None
    seed_everything(start_seed(stage, "model", 0))
    recipe = load_recipe(stage.recipe, stage.params, paths=[Path(order["folder"])])
    batches = Batches(recipe, stage, sizes=order.get("sizes", ()))
    try:
        plain = _traced(recipe, stage, batches, order, progress)
    except Untraceable as error:
        return _measured(recipe, stage, batches, error, order, progress)
    about = origin(recipe, stage, order)
    return {"probe": {**plain, **about}, "untraced": None, "unmeasured": None}


def _traced(
    recipe: Any,
    stage: ResolvedStage,
    batches: Batches,
    order: dict[str, Any],
    progress: ProgressCallback,
) -> dict[str, Any]:
    ranks = int(order.get("ranks", 1))
    traced = Traced(recipe, stage, batches, device=order["device"], ranks=ranks)
    found = traced.fitted(choose_points(batches.sizes), progress)
    if not found.is_exact and len(batches.sizes) > 1:
        traced.notes.append(
            f"memory is not a function of batch and size alone ({found.reason}): the figures are "
            f"those of the largest size, {batches.sizes[-1]}"
        )
        found = traced.fitted(choose_points(batches.sizes[-1:]), progress)
    if not found.is_exact:
        traced.notes.append(f"steps of different batches differ: {found.reason}")
    return {**found.to_plain(), "notes": traced.all_notes()}


def _measured(
    recipe: Any,
    stage: ResolvedStage,
    batches: Batches,
    error: Untraceable,
    order: dict[str, Any],
    progress: ProgressCallback,
) -> dict[str, Any]:
    answer = {"probe": None, "untraced": plain_cause(error), "unmeasured": None}
    if not order.get("may_measure", False):
        return answer
    try:
        plain = real_steps(recipe, stage, order, progress).fitted(batches, error)
    except Unmeasured as trouble:
        return {**answer, "unmeasured": trouble.message}
    return {**answer, "probe": {**plain, **origin(recipe, stage, order)}}


def plain_cause(error: Untraceable) -> dict[str, str]:
    return {"op": error.op, "reason": error.reason}


def real_steps(
    recipe: Any, stage: ResolvedStage, order: dict[str, Any], progress: ProgressCallback
) -> RealSteps:
    """As the order wants them."""
    ranks = int(order.get("ranks", 1))
    return RealSteps(
        recipe=recipe,
        stage=stage,
        device=order["device"],
        ranks=ranks,
        accumulates=_accumulates(stage, ranks),
        progress=progress,
    )


def origin(recipe: Any, stage: ResolvedStage, order: dict[str, Any]) -> dict[str, str]:
    """By which a file is known again."""
    ranks = int(order.get("ranks", 1))
    key = probe_key(
        stage,
        code=_code_of(recipe, Path(order["folder"])),
        torch=torch.__version__,
        device=order["device"],
        accumulates=_accumulates(stage, ranks),
        ranks=ranks,
        sizes=tuple(order.get("sizes", ())),
    )
    return {"key": key, "torch": torch.__version__}


class Traced:
    """Traces of one stage."""

    def __init__(
        self,
        recipe: Any,
        stage: ResolvedStage,
        batches: Batches | None,
        *,
        device: Device,
        ranks: int,
    ) -> None:
        self._recipe, self._batches, self._device, self._ranks = recipe, batches, device, ranks
        self._accumulation = 2 if _accumulates(stage, ranks) else 1
        self._bounds = Bounds()
        self.notes: list[str] = []
        if stage.compile is not False:
            self.notes.append(
                "traced as it is written: what `compile` saves is not in the figures, only a "
                "measured probe tells"
            )
            stage = msgspec.structs.replace(stage, compile=False)
        self._stage = stage

    def fitted(self, points: Points, progress: ProgressCallback) -> Fit:
        *used, held_back = self._traces(points, progress, times=1)
        found = fit(used, held_back=held_back)
        if found.is_exact:
            return found
        # A model may keep tensors of the last batch: then a step is as the next ones only when the
        # one before had the same batch.
        num = len(points.used)
        # A loop over samples takes the longer the more there are.
        is_quick = held_back.ops <= max(_MOST_OPS, 2 * used[-1].ops)
        traces = self._traces(points, progress, times=2, goes_farther=is_quick)
        return fit(traces[:num], held_back=traces[num], farther=traces[num + 1 :])

    def _traces(
        self, points: Points, progress: ProgressCallback, *, times: int, goes_farther: bool = False
    ) -> list[Trace]:
        """The last of so many steps at each point."""
        assert self._batches is not None
        used = [self._batches.at(batch, size) for batch, size in points.used]
        most, num_bytes = points.used[-1][0], count_bytes(tensors_in(used[-1]))
        fitting = [
            point
            for point in (points.held_back, *(points.farther if goes_farther else ()))
            if num_bytes * point[0] <= MOST_BYTES * most
        ]
        wanted = [*zip(points.used, used, strict=True)]
        wanted += [(point, self._batches.at(*point)) for point in fitting or [points.near]]
        return self.traces_of(wanted, progress, times=times)

    def traces_of(
        self, wanted: Sequence[tuple[Point, Any]], progress: ProgressCallback, *, times: int
    ) -> list[Trace]:
        """Of these batches, one after another."""
        found = []
        with opened(
            self._recipe, self._stage, device=self._device, bounds=self._bounds, ranks=self._ranks
        ) as traced:
            # The first is thrown away: the optimizer's states come in it.
            for number, ((batch, size), data) in enumerate([wanted[0], *wanted]):
                progress(Progress("tracing a step", number, len(wanted) + 1))
                for _ in range(times):
                    trace = traced.trace(
                        data, batch=batch, size=size, accumulation=self._accumulation
                    )
                found.append(trace)
            self._look_at(traced.model)
        return found[1:]

    def _look_at(self, model: nn.Module) -> None:
        if any("FSDP" in type(part).__name__ for part in model.modules()):
            raise Untraceable("FSDP", "its shards come and go between ranks")
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
