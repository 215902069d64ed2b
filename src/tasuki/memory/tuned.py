"""`micro_batch: auto`: the largest micro-batch that fits, asked for once, at a stage's first start.

Rank 0 asks a child process (batch_size.py) before anything of the run is on the device; what comes
of it is on disk before the stage's first checkpoint, as `micro-batch` events and one `batch-tuned`
after them, and holds for all ranks and all attempts. A child that fails never ends a run: then a
rank's whole share is one micro-batch, and running out of memory is survived (fitting.py). A given
`micro_batch`, `accumulation` or `budget` is left alone. `tasuki tune --batch-size` asks the same
child.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterable, Mapping
from typing import Any

from tasuki import subprocesses
from tasuki.errors import TasukiError
from tasuki.estimation.conformal import is_ratio, ratios_in
from tasuki.estimation.factor import (
    Tuned,
    TunedBucket,
    describe_batch_sizes,
    find_safe_batch,
)
from tasuki.failpoints import failpoint
from tasuki.runs.events import read_events
from tasuki.runs.history import read_history
from tasuki.spec.resolved import ResolvedStage, to_plain
from tasuki.subprocesses import Progress, ProgressCallback
from tasuki.train.gauge import open_gauge
from tasuki.train.task import Task

EVENT = "batch-tuned"
DECISION = "micro-batch"
_CHILD = "tasuki.memory.batch_size:work"
_WITHIN_S = 1200.0


def is_tuned(stage: ResolvedStage) -> bool:
    """Does the stage leave its micro-batch to us? Where `accumulation` is given, it follows."""
    is_open = stage.micro_batch == "auto" and stage.accumulation is None
    return is_open and stage.buckets.given_budget is None


def tune_once(task: Task) -> None:
    """Nothing, unless this is the stage's first start on a device whose memory has an end."""
    if not task.is_first or not is_tuned(task.stage):
        return
    if open_gauge(task.device) is None:
        _say_without_end(task)
        return
    share = -(-(task.stage.effective_batch or 1) // task.ranks.world)
    if share == 1 or _has_begun(task):
        return
    try:
        answer = _ask(task)
    except (TasukiError, OSError) as error:
        _go_without(task, str(error))
        return
    if answer["capacity_bytes"] is None:
        return
    _decide(task, answer)


def _say_without_end(task: Task) -> None:
    """Once, at the stage's start."""
    if task.stage.buckets.budget == "auto" and not _has_begun(task):
        task.say(
            "`budget: auto`: the memory of this device has no end that is known, so that a rank's "
            "whole share of a step is one micro-batch"
        )


def _has_begun(task: Task) -> bool:
    """A stage that has a decision or a checkpoint is split as it was."""
    kinds = (EVENT, "committed", "restored")
    return any(
        event["kind"] in kinds and event.get("stage") == task.stage.name
        for event in read_events(task.run)
    )


def _ask(task: Task) -> dict[str, Any]:
    task.say("Batch size tuner: looking for the largest micro-batch that fits")
    with tempfile.TemporaryDirectory(prefix="tasuki-batch-") as elsewhere:
        answer: dict[str, Any] = subprocesses.run(
            _CHILD,
            {
                "stage": to_plain(task.stage),
                "paths": [str(task.run.code), str(task.folder)],
                "device": str(task.device),
                "ranks": task.ranks.world,
                "threads": task.threads,
                "is_bounded": True,
                "parent": os.getpid(),
            },
            python=sys.executable,
            # What the recipe writes beside its run in a step, it must not write there now.
            environment={**os.environ, "TASUKI_RUN": elsewhere},
            cwd=str(task.folder),
            timeout_s=_WITHIN_S,
            progress=_telling(task),
            result=dict[str, Any],
        )
    return answer


def _telling(task: Task) -> ProgressCallback:
    """Some twenty words in all: traces and tries are few."""
    said: list[Progress] = []

    def tell(progress: Progress) -> None:
        if said[-1:] != [progress]:
            said[:] = [progress]
            number = f" {progress.done + 1} of {progress.total}" if progress.total else ""
            task.doing(f"largest micro-batch: {progress.what}{number}")

    return tell


def _go_without(task: Task, why: str) -> None:
    """Decided, too: a later attempt must not split the same steps otherwise."""
    task.events.add(EVENT, stage=task.stage.name, buckets=[], source="none", error=why)
    task.events.sync()
    task.say(
        f"WARNING: the batch size tuner failed ({why}): a rank's whole share of a step is one "
        "micro-batch; it is halved where memory runs out"
    )


def _decide(task: Task, answer: Mapping[str, Any]) -> None:
    """On disk first: `batch-tuned` last, so that what it stands for is there."""
    factor, name = task.stage.safety_factor, task.stage.name
    gpu, recipe = answer["device"], str(task.stage.recipe)
    past = ratios_in(read_history(task.run.path.parent), recipe=recipe, gpu=gpu)
    ratios = [*past, *_ratios_of(answer["tries"])]
    rows = [{**row, "micro_batch": find_safe_batch(row, factor)} for row in answer["buckets"]]
    for row in rows:
        if row["micro_batch"] < row["share"]:
            task.events.add(
                DECISION,
                stage=name,
                bucket=row["bucket"],
                from_step=0,
                most=row["micro_batch"],
                was=row["share"],
                unit=row["unit"],
                reason=f"tuned: {row['found']} fit, factor {factor:g}",
                factor=factor,
            )
    task.events.add(
        EVENT,
        stage=name,
        buckets=rows,
        capacity_bytes=answer["capacity_bytes"],
        factor=factor,
        probes=len(answer["tries"]),
        tries=answer["tries"],
        ratios=ratios,
        gpu=gpu,
        source=answer["source"],
    )
    task.events.sync()
    told = describe_batch_sizes(
        rows, factor, capacity_bytes=answer["capacity_bytes"], cost=task.stage.buckets.cost
    )
    for line in told:
        task.say(line)
    if answer["untraced"] is not None:
        reason = answer["untraced"]["reason"]
        task.say(f"Batch size tuner: not traced ({reason}), found by measuring alone")
    failpoint("batch.decided")


def _ratios_of(tries: Iterable[Mapping[str, Any]]) -> list[float]:
    pairs = [(one["peak_bytes"], one["predicted_bytes"]) for one in tries]
    found = [measured / predicted for measured, predicted in pairs if measured and predicted]
    return [ratio for ratio in found if is_ratio(ratio)]


def read_tuned(events: Iterable[Mapping[str, Any]], stage: str) -> Tuned | None:
    """The tuner's word, as the events of a run tell it. None: it has not spoken, or had none."""
    told = [e for e in events if e["kind"] == EVENT and e.get("stage") == stage]
    if not told or not told[-1].get("buckets"):
        return None
    last = told[-1]
    return Tuned(
        factor=float(last["factor"]),
        capacity_bytes=int(last["capacity_bytes"]),
        buckets=tuple(_bucket(row) for row in last["buckets"]),
        ratios=tuple(float(ratio) for ratio in last["ratios"]),
    )


def _bucket(row: Mapping[str, Any]) -> TunedBucket:
    return TunedBucket(
        bucket=int(row["bucket"]),
        size=row["size"],
        share=int(row["share"]),
        found=int(row["found"]),
        curve=tuple((int(batch), int(count)) for batch, count in row["curve"]),
    )
