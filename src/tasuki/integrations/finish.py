"""The end of a stage whose loop is the user's own: weights, metrics, then the stage is done.

The counterpart of train/finish.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tasuki.checkpoint.weights import read_weights, write_weights
from tasuki.clock import utc
from tasuki.errors import CheckpointError, WeightsError
from tasuki.failpoints import failpoint
from tasuki.integrations.rows import read
from tasuki.loop.best import Best, sweep_done
from tasuki.loop.worker import Worker
from tasuki.runs.atomic import FORMAT, make_folder, write_json
from tasuki.runs.lines import spelled
from tasuki.runs.runs import StageFolder


def finish_stage(
    worker: Worker,
    weights: Mapping[str, Any] | None,
    *,
    best: Best | None,
    steps: int,
    steps_per_epoch: int,
    samples: int,
    last: Mapping[str, Any],
    metrics: Mapping[str, Any] | None,
) -> None:
    """Idempotent: repeated by the next attempt when this one is killed in here."""
    failpoint("finish.begin")
    stage = worker.stage.name
    folder = worker.run.stage(stage)
    make_folder(folder.path)
    sha256 = None
    if best is not None:
        weights = _read_best(folder, best)
    if weights is not None:
        facts = {"stage": stage, "step": str(best.step if best else steps)}
        try:
            sha256 = write_weights(folder.weights, weights, facts)
        except (WeightsError, CheckpointError) as error:
            worker.say(f"WARNING: there is no weights.safetensors of stage {stage}: {error}")
    failpoint("finish.weights")
    now = utc(worker.clock.wall())
    if metrics is not None:
        told = spelled(read(dict(metrics)))
        value = {"format": FORMAT, "stage": stage, "data": None, "split": None, "metrics": told}
        write_json(folder.evaluation, {**value, "sha256": sha256, "evaluated_at": now})
    write_json(
        folder.metrics,
        {
            "format": FORMAT,
            "stage": stage,
            "steps": steps,
            "epochs": steps / steps_per_epoch,
            "samples": samples,
            "last": spelled(dict(last)),
            "best": {"metric": best.metric, "value": best.value, "step": best.step}
            if best
            else None,
            "scaling": None,
            "sha256": sha256,
            "finished_at": now,
        },
    )
    sweep_done(worker.run, stage, best=best)
    failpoint("finish.swept")
    worker.say(f"Finished stage {stage}: {steps:,} steps")
    worker.event("stage-done", stage=stage, steps=steps, sha256=sha256)


def _read_best(folder: StageFolder, best: Best) -> dict[str, Any]:
    """An attempt that was killed before its marker has made them the stage's weights already, byte
    by byte, and removed the double."""
    path = folder.path / best.file
    is_moved = bool(best.sha256) and not path.exists() and folder.weights.exists()
    return read_weights(folder.weights if is_moved else path, sha256=best.sha256 or None)
