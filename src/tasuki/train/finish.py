"""The end of a stage: its weights, then its metrics, which mark it as done."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Any

from torch import Tensor

from tasuki.checkpoint.export import is_exported, pack
from tasuki.checkpoint.weights import read_weights, write_weights
from tasuki.clock import utc
from tasuki.estimation.scaling import Scaling, find_baseline
from tasuki.failpoints import failpoint
from tasuki.loop.best import Best, sweep_done
from tasuki.loop.exact import describe
from tasuki.runs.atomic import FORMAT, make_folder, write_bytes, write_json
from tasuki.runs.history import read_history
from tasuki.runs.lines import spelled
from tasuki.spec.export import Export, parse_export
from tasuki.train.prepare import Setup
from tasuki.train.remember import Ran, remember_stage
from tasuki.train.snapshot import Progress
from tasuki.train.task import Task


def finish_stage(
    task: Task,
    setup: Setup,
    progress: Progress,
    last_row: dict[str, Any],
    ran: Ran,
    *,
    exchange_s: float | None = None,
) -> None:
    """Idempotent: repeated by the next attempt when this one is killed in here."""
    best = progress.best
    folder = task.run.stage(task.stage.name)
    make_folder(folder.path)
    if best is not None:
        weights = read_weights(folder.path / best.file, sha256=best.sha256 or None)
    else:
        weights = setup.model.state_dict()
    step = best.step if best else setup.total_steps
    sha256 = write_weights(folder.weights, weights, {"stage": task.stage.name, "step": str(step)})
    failpoint("finish.weights")
    for wanted in parse_export(task.stage.export):
        _export(task, wanted, weights, step=step)
    scaling = _find_scaling(task, setup, exchange_s)
    write_json(
        folder.metrics,
        {
            "format": FORMAT,
            "stage": task.stage.name,
            "steps": setup.total_steps,
            "epochs": setup.total_steps / setup.order.steps_per_epoch,
            "samples": progress.samples,
            "last": spelled(last_row),
            "best": {"metric": best.metric, "value": best.value, "step": best.step}
            if best
            else None,
            "scaling": scaling.as_json() if scaling is not None else None,
            "sha256": sha256,
            "finished_at": utc(task.clock.wall()),
        },
    )
    sweep_done(task.run, task.stage.name, best=best)
    remember_stage(task, setup, progress, ran, sha256=sha256)
    if scaling is not None:
        task.say(f"Scaling: {scaling.in_words()}")
        task.event("scaling", stage=task.stage.name, **scaling.as_json())
    task.say(f"Finished stage {task.stage.name}: {setup.total_steps:,} steps{_which(best)}")
    task.event("stage-done", stage=task.stage.name, steps=setup.total_steps, sha256=sha256)


def _which(best: Best | None) -> str:
    """Whose weights the stage's are; a stage that brought nothing must not pass unseen."""
    if best is None:
        return ""
    value = f"{best.metric} {best.value:.4g}"
    if best.step == 0:
        return f"; none was better than the weights it started from ({value}), and those count"
    return f"; best weights: step {best.step:,} (validation {value})"


def _find_scaling(task: Task, setup: Setup, exchange_s: float | None) -> Scaling | None:
    """None: one rank, or no step of this attempt to tell from."""
    world, stage = task.ranks.world, task.stage
    if world == 1 or not task.watch.step_s:
        return None
    step_s = median(task.watch.step_s)
    history = read_history(task.run.path.parent)
    hardware = describe(threads=task.threads, world=world, device=task.device)
    return Scaling(
        ranks=world,
        samples_per_sec=setup.order.effective_batch / step_s,
        exchange=min(1.0, exchange_s / step_s) if exchange_s is not None else None,
        baseline=find_baseline(
            history,
            stage,
            device=task.device.type,
            ranks=world,
            device_model=hardware["device_model"],
        ),
    )


def _export(task: Task, wanted: Export, weights: Mapping[str, Tensor], *, step: int) -> None:
    """A further file of the stage's weights; the one in the run's folder is written already."""
    own = task.run.stage(task.stage.name).weights.with_suffix(f".{wanted.format}")
    path = task.folder / wanted.to if wanted.to is not None else own
    if path.exists() and path != own and not is_exported(path):
        task.say(f"WARNING: {path} is no export of tasuki and stays as it is; see {own}")
        path = own
    if path == own and wanted.format == "safetensors":
        return
    name = task.stage.name
    data = pack(path, weights, wanted.format, run=task.run.name, stage=name, step=step)
    make_folder(path.parent)
    write_bytes(path, data)
    task.say(f"Exported the weights of stage {name} to {path}")
