"""What a stage measured, for the estimates of later ones: one line of history at its end.

Built when all steps are done, from what the loop kept anyway and from the run's own events: a step
costs nothing more for it. The times of steps are known in their order, and the order of steps is a
function, so the bucket of each follows. An evaluation is a later phase, and writes a line of its
own, which readers join by the hash of the weights. A figure is never worth a run: what fails in
here is a warning.
"""

from __future__ import annotations

import re
import resource
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

from tasuki.data.order import Order
from tasuki.data.shares import StepSplit
from tasuki.errors import StoreError
from tasuki.estimation.facts import family_key, stage_key
from tasuki.estimation.intervals import num_validations
from tasuki.estimation.past import EVALUATION
from tasuki.loop.exact import describe
from tasuki.runs.atomic import FORMAT, read_json, shaped
from tasuki.runs.events import read_events
from tasuki.runs.history import append_history
from tasuki.runs.spent import Lately, Spent, add_up_stage
from tasuki.train.borders import EVENT as BORDER
from tasuki.train.gauge import attempt_peaks
from tasuki.train.task import Task

if TYPE_CHECKING:  # they import evaluate.py, which imports this
    from tasuki.train.prepare import Setup
    from tasuki.train.snapshot import Progress

_PREDICTED = ("bare_step_s", "tensor_bytes", "reserved_bytes")
_TENSORS = ("weights", "gradients", "optimizer", "activations", "batch")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """What the loop knows of its attempt when it is over."""

    start_s: float
    """From the birth of the process to the first step."""
    first_step: int
    """Since the last roll-back, if there was one."""
    split: StepSplit
    files: str | None
    """What the data's files are, as their fingerprint tells."""


def remember_stage(task: Task, setup: Setup, progress: Progress, ran: Ran, *, sha256: str) -> None:
    """Where no step was done in this attempt nothing was measured."""
    recent = _recent_steps(task, progress, ran)
    if not recent:
        return
    try:
        with shaped(task.run.events):
            value = _describe(task, setup, progress, ran, recent)
        _append(task, {**value, "sha256": sha256})
    except StoreError as error:
        task.say(f"WARNING: what stage {task.stage.name} measured is not remembered: {error}")


def remember_evaluation(task: Task, *, sha256: str, samples: int | None) -> None:
    parts = task.stopwatch.parts
    value = {
        "kind": EVALUATION,
        **_identity(task),
        "sha256": sha256,
        "samples": samples,
        "start_s": parts["start"],
        "evaluate_s": parts["evaluate"],
    }
    try:
        _append(task, value)
    except StoreError as error:
        task.say(f"WARNING: how long the evaluation took is not remembered: {error}")


def _append(task: Task, value: dict[str, Any]) -> None:
    writer = f"{task.run.name}.{task.orders.claim}"
    append_history(task.run.path.parent, writer, {"format": FORMAT, **_rounded(value)})


def _rounded(value: Any) -> Any:
    """Microseconds are enough."""
    if isinstance(value, dict):
        return {key: _rounded(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_rounded(entry) for entry in value]
    return round(value, 6) if isinstance(value, float) else value


def _identity(task: Task) -> dict[str, Any]:
    stage = task.stage
    return {
        "at": task.clock.wall(),
        "run": task.run.name,
        "experiment": task.experiment.name,
        "stage": stage.name,
        "claim": task.orders.claim,
        "recipe": stage.recipe,
        "data": stage.data if isinstance(stage.data, str | None) else ", ".join(stage.data),
    }


def _describe(
    task: Task, setup: Setup, progress: Progress, ran: Ran, recent: Sequence[float]
) -> dict[str, Any]:
    stage, order, world = task.stage, setup.order, task.ranks.world
    device = task.device.type
    events = read_events(task.run)
    lately = Lately(
        claim=task.orders.claim,
        first_step=ran.first_step,
        last_step=progress.step,
        parts=dict(task.stopwatch.parts),
    )
    spent = add_up_stage(events, stage.name, lately)
    own = [event for event in events if event.get("stage") == stage.name]
    hardware = describe(threads=task.threads, world=world, device=task.device)
    return {
        "kind": "stage",
        "key": stage_key(stage, device=device, ranks=world),
        "family": family_key(stage, device=device, ranks=world),
        **_identity(task),
        "device": device,
        "device_model": hardware["device_model"],
        "gpu": read_json(task.job.lanes).get("gpu"),
        "ranks": world,
        "steps": setup.total_steps,
        "steps_per_epoch": order.steps_per_epoch,
        "samples": _samples_per_epoch(setup, progress),
        "data_bytes": _bytes_of(ran.files),
        "effective_batch": order.effective_batch,
        "buckets": _buckets(setup, progress, ran.split, recent, own),
        "step_s": median(recent),
        "step_s_p10": quantile(recent, 0.1),
        "step_s_p90": quantile(recent, 0.9),
        "start_s": ran.start_s,
        "save_s": median(task.watch.save_s) if task.watch.save_s else None,
        "memory": _memory(task, own),
        "predicted": _predicted(own),
        **_spent(task, setup, spent),
    }


def _spent(task: Task, setup: Setup, spent: Spent) -> dict[str, Any]:
    """Over all attempts of the stage."""
    validate = task.stage.validate
    validations = 0
    if validate is not None:
        per_epoch = setup.order.steps_per_epoch
        validations = num_validations(
            validate.every, steps=setup.total_steps, steps_per_epoch=per_epoch
        )
    blocked = [blocked_s for blocked_s, _ in spent.saves]
    return {
        "train_s": spent.train_s,
        "parts": spent.parts,
        "other_s": max(0.0, task.stopwatch.lived_s - sum(task.stopwatch.parts.values())),
        "saves": len(spent.saves),
        "blocked_s": median(blocked) if blocked else None,
        "validations": validations,
        "validate_s": spent.parts.get("validate", 0.0) / validations if validations else None,
        "queue_s": spent.queue_s,
        "attempts": spent.attempts,
        "preemptions": spent.preemptions,
    }


def _recent_steps(task: Task, progress: Progress, ran: Ran) -> list[float]:
    """Times of the last steps, which follow one another up to the stage's last."""
    known = task.watch.step_s
    most = min(len(known), progress.step - ran.first_step)
    return list(islice(known, len(known) - most, None))


def _buckets(
    setup: Setup,
    progress: Progress,
    split: StepSplit,
    recent: Sequence[float],
    events: Iterable[Mapping[str, Any]],
) -> list[dict[str, Any]] | None:
    """None: the recipe's own loader decides what a step holds."""
    order = setup.order
    if not isinstance(order, Order):
        return None
    times: defaultdict[int, list[float]] = defaultdict(list)
    for step, seconds in enumerate(recent, progress.step - len(recent)):
        times[order.step(*divmod(step, order.steps_per_epoch)).bucket].append(seconds)
    tuned = _tuned(events)
    return [
        {
            "size": bucket.size,
            "samples": bucket.samples,
            "micro_batch": None if split.costs is not None else split.most_at(progress.step, b),
            **_quantiles(times[b]),
            "peak_bytes": tuned.get(b, {}).get("measured_bytes"),
            "predicted_bytes": tuned.get(b, {}).get("predicted_bytes"),
        }
        for b, bucket in enumerate(order.plan.buckets)
    ]


def _quantiles(seconds: Sequence[float]) -> dict[str, float | None]:
    if not seconds:
        return {"step_s": None, "step_s_p10": None, "step_s_p90": None, "mean_s": None}
    return {
        "step_s": median(seconds),
        "step_s_p10": quantile(seconds, 0.1),
        "step_s_p90": quantile(seconds, 0.9),
        "mean_s": fmean(seconds),
    }


def quantile(values: Sequence[float], share: float) -> float:
    """The nearest value that was seen."""
    return sorted(values)[round(share * (len(values) - 1))]


def _tuned(events: Iterable[Mapping[str, Any]]) -> dict[int, Mapping[str, Any]]:
    """What the batch tuner foretold and measured, by bucket; its last word counts."""
    told = [event for event in events if event.get("kind") == "batch-tuned"]
    entries = told[-1].get("buckets") or () if told else ()
    return {int(entry["bucket"]): entry for entry in entries}


def _predicted(events: Iterable[Mapping[str, Any]]) -> dict[str, Any] | None:
    """What was foretold of the stage before it began, for factors that are learnt from both."""
    told = [event for event in events if event.get("kind") == "predicted"]
    return {key: told[-1].get(key) for key in _PREDICTED} if told else None


def _memory(task: Task, events: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Of rank 0. On a GPU the attempt's peaks, as torch kept them; on a CPU what the attempt
    measured in its second step."""
    told = [event for event in events if event.get("kind") == "memory"]
    seen: Mapping[str, Any] = told[-1] if told else {}
    device, host = seen.get("device") or {}, seen.get("host") or {}
    found: dict[str, Any] = {
        "on": task.device.type,
        "tensor_bytes": sum(device.get(part) or 0 for part in _TENSORS) or None,
        "reserved_bytes": None,
        "peak_bytes": device.get("peak"),
        "host_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        + (host.get("loader") or 0),
    }
    if task.device.type == "cuda":
        peaks = attempt_peaks(task.device)
        found["tensor_bytes"] = peaks.tensors
        before = [event.get("peak_bytes") or 0 for event in events if event["kind"] == BORDER]
        found["reserved_bytes"] = max(peaks.reserved, *before, 0)
    return found


def _samples_per_epoch(setup: Setup, progress: Progress) -> int:
    order = setup.order
    if isinstance(order, Order):
        return order.samples_per_epoch
    return round(progress.samples * order.steps_per_epoch / max(1, progress.step))


def _bytes_of(files: str | None) -> int | None:
    """`3 files, 1234 bytes, <digest>`."""
    found = re.search(r"(\d+) bytes", files or "")
    return int(found[1]) if found else None
