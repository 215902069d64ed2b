"""`python -m tasuki.train.measure FD`: how long steps take here, for `tasuki plan`.

A child process (answers.py) that leaves nothing behind.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch

from tasuki.answers import Told, answer
from tasuki.checkpoint.parts import write_part
from tasuki.clock import SystemClock
from tasuki.data.fetch import seed_everything
from tasuki.data.tempo import share_cpus
from tasuki.runtime.exact import apply_settings
from tasuki.runtime.ranks import ALONE
from tasuki.runtime.state import capture
from tasuki.runtime.stopwatch import process_age_s
from tasuki.spec.resolved import ResolvedStage, experiment_from_plain
from tasuki.train.assemble import assemble, make_engine, num_shapes
from tasuki.train.data import make_loader, prepare_data
from tasuki.train.precision import apply_precision
from tasuki.train.prepare import start_seed
from tasuki.train.recipe import load_recipe

_MIN_STEPS = 5
_MAX_STEPS = 30
_BUDGET_S = 3.0
"""Per stage, at least _MIN_STEPS."""
_WARM_UP = 2


def work(order: dict[str, Any], _: Told) -> dict[str, Any]:
    return _measure_all(order, import_s=process_age_s())


def _measure_all(order: dict[str, Any], *, import_s: float) -> dict[str, Any]:
    experiment = experiment_from_plain(order["experiment"])
    stages = [stage for stage in experiment.stages if stage.name in order["stages"]]
    found = {}
    for stage in stages:
        apply_settings(threads=_threads(stage, order), exact=stage.exact)
        facts = _measure(stage, order)
        facts["start_s"] = import_s + facts.pop("setup_s")
        found[stage.name] = facts
    return found


def _threads(stage: ResolvedStage, order: dict[str, Any]) -> int:
    """As many as a rank of the run will have."""
    workers = stage.loader.workers if isinstance(stage.loader.workers, int) else None
    cpus = order["cpus"] // order["ranks"]
    return share_cpus(cpus, is_gpu=order["device"] == "cuda", workers=workers)[0]


def _measure(stage: ResolvedStage, order: dict[str, Any]) -> dict[str, Any]:
    began = time.monotonic()
    assert stage.recipe is not None
    seed_everything(start_seed(stage, "model", 0))
    recipe = load_recipe(stage.recipe, stage.params, paths=[Path(order["folder"])])
    data = prepare_data(recipe, stage, rank=0, world=order["ranks"])
    steps, batch = data.order, data.batch
    total = steps.total_steps(stage.length.unit, stage.length.count)
    is_gpu = order["device"] == "cuda" and torch.cuda.is_available()
    device = torch.device("cuda" if is_gpu else "cpu")
    apply_precision(stage.precision, device)
    assembled = assemble(recipe, stage, device=device, total_steps=total, say=_unsaid)
    tracked, schedule = assembled.tracked, assembled.schedule
    engine = make_engine(
        recipe,
        stage,
        assembled,
        ranks=ALONE,
        device=device,
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
        "total_steps": total,
        "steps_per_epoch": steps.steps_per_epoch,
        "step_s": median(known),
        "save_s": _time_save(capture(tracked)),
        "setup_s": setup_s,
        "effective_batch": batch.effective_batch,
        "micro_batch": batch.micro_batch,
        "accumulation": batch.accumulation,
    }


def _unsaid(_: str) -> None:
    """The run itself will say it."""


def _time_save(state: dict[str, Any]) -> float:
    with tempfile.TemporaryDirectory() as folder:
        at = SystemClock.monotonic()
        write_part(Path(folder), 0, state)
        return SystemClock.monotonic() - at


if __name__ == "__main__":
    answer(work)
