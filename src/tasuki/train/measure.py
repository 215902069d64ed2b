"""How long steps take here, for `tasuki plan`.

A child process that leaves nothing behind calls `work`. The order: {"experiment": plain values,
"stages": names, "folder", "device", "ranks", "cpus", "timed": names of stages whose
steps are only counted}. The answer: {"code": {file: sha256}, "stages": {name: what was measured}}.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch

from tasuki.checkpoint.parts import write_part
from tasuki.clock import SystemClock
from tasuki.data.fetch import seed_everything
from tasuki.estimation.works import threads_of
from tasuki.loop.exact import apply_settings
from tasuki.loop.ranks import ALONE
from tasuki.loop.state import capture
from tasuki.loop.stopwatch import process_age_s
from tasuki.spec.resolved import ResolvedStage, experiment_from_plain
from tasuki.subprocesses import Progress, ProgressCallback
from tasuki.train.assemble import assemble, make_engine, num_shapes
from tasuki.train.data import StageData, make_loader, prepare_data
from tasuki.train.made_of import code_of
from tasuki.train.precision import apply_precision
from tasuki.train.prepare import start_seed
from tasuki.train.recipe import load_recipe

_MIN_STEPS = 5
_MAX_STEPS = 30
_BUDGET_S = 3.0
"""Per stage, at least _MIN_STEPS."""
_WARM_UP = 2


def work(order: dict[str, Any], progress: ProgressCallback) -> dict[str, Any]:
    return _measure_all(order, progress, import_s=process_age_s())


def _measure_all(
    order: dict[str, Any], progress: ProgressCallback, *, import_s: float
) -> dict[str, Any]:
    experiment = experiment_from_plain(order["experiment"])
    stages = [stage for stage in experiment.stages if stage.name in order["stages"]]
    found, recipes = {}, []
    for stage in stages:
        is_timed = stage.name in order["timed"]
        progress(Progress(f"{'counting' if is_timed else 'measuring some'} steps of {stage.name}"))
        began = time.monotonic()
        place = {name: order[name] for name in ("device", "ranks", "cpus")}
        apply_settings(threads=threads_of(stage, **place), exact=stage.exact)
        assert stage.recipe is not None
        seed_everything(start_seed(stage, "model", 0))
        recipe = load_recipe(stage.recipe, stage.params, paths=[Path(order["folder"])])
        data = prepare_data(recipe, stage, rank=0, world=order["ranks"])
        facts = _count(stage, data)
        if not is_timed:
            facts |= _time(stage, recipe, data, device=order["device"], began=began)
            facts["start_s"] = import_s + facts.pop("setup_s")
        found[stage.name] = facts
        recipes.append(recipe)
    return {"stages": found, "code": code_of(recipes, Path(order["folder"]))}


def _count(stage: ResolvedStage, data: StageData) -> dict[str, Any]:
    steps, batch = data.order, data.batch
    return {
        "total_steps": steps.total_steps(stage.length.unit, stage.length.count),
        "steps_per_epoch": steps.steps_per_epoch,
        "effective_batch": batch.effective_batch,
        "micro_batch": batch.micro_batch,
        "accumulation": batch.accumulation,
    }


def _time(
    stage: ResolvedStage, recipe: Any, data: StageData, *, device: str, began: float
) -> dict[str, Any]:
    steps = data.order
    total = steps.total_steps(stage.length.unit, stage.length.count)
    is_gpu = device == "cuda" and torch.cuda.is_available()
    used = torch.device("cuda" if is_gpu else "cpu")
    apply_precision(stage.precision, used)
    assembled = assemble(recipe, stage, device=used, total_steps=total, say=_unsaid)
    tracked, schedule = assembled.tracked, assembled.schedule
    engine = make_engine(
        recipe,
        stage,
        assembled,
        ranks=ALONE,
        device=used,
        num_shapes=num_shapes(steps),
        say=_unsaid,
    )
    loader = make_loader(data, first_step=0, total_steps=total)
    setup_s = time.monotonic() - began
    times: list[float] = []
    for number, (batches, num_samples) in enumerate(loader.steps()):
        at = time.monotonic()
        engine.step(batches, num_samples)
        if is_gpu:
            torch.cuda.synchronize()
        if schedule is not None:
            schedule.set_for(number)
        times.append(time.monotonic() - at)
        is_enough = len(times) >= _WARM_UP + _MIN_STEPS and sum(times) > _BUDGET_S
        if is_enough or len(times) >= _WARM_UP + _MAX_STEPS:
            break
    known = times[_WARM_UP:] or times
    return {
        "step_s": median(known),
        "save_s": _time_save(capture(tracked)),
        "setup_s": setup_s,
    }


def _unsaid(_: str) -> None:
    """The run itself will say it."""


def _time_save(state: dict[str, Any]) -> float:
    with tempfile.TemporaryDirectory() as folder:
        at = SystemClock.monotonic()
        write_part(Path(folder), 0, state)
        return SystemClock.monotonic() - at
