"""Check that a run used the samples that the orders of its stages name. Writes nothing.

`tasuki verify samples` calls `check` in a child process, as recipes and data need torch.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from tasuki.checkpoint.lineage import ancestry_of, list_checkpoints
from tasuki.checkpoint.manifest import ParsedName, parse_name
from tasuki.checkpoint.verify import read_manifest
from tasuki.data.fetch import seed_everything
from tasuki.data.order import Order
from tasuki.data.plain import Gathered, PlainOrder
from tasuki.data.sample_check import find_difference
from tasuki.data.used import Used
from tasuki.errors import DamagedCheckpoint
from tasuki.runs.atomic import read_json_or_none
from tasuki.runs.events import read_events
from tasuki.runs.runs import RunFolder
from tasuki.spec.resolved import ResolvedStage
from tasuki.subprocesses import Progress, ProgressCallback
from tasuki.train.data import prepare_data
from tasuki.train.prepare import start_seed
from tasuki.train.recipe import load_recipe
from tasuki.train.task import read_experiment


class SampleRecord(NamedTuple):
    """What a checkpoint recorded about its stage."""

    stage: str
    step: int
    used: Any  # JSON of `Used`; None where the loader is the user's own
    order: Any = None  # JSON of the `PlainOrder` of a custom loop
    exists: bool = False  # else it is pruned, and only an event names it


Records = dict[ParsedName, SampleRecord]


def check(run: Path, stages: list[str], progress: ProgressCallback) -> list[dict[str, Any]]:
    """Check these stages. The results are decoded as `StageSamples` (commands/verify.py)."""
    folder = RunFolder(run)
    records, results = read_records(folder), []
    for stage in read_experiment(folder)[0].stages:
        own = {name: record for name, record in records.items() if record.stage == stage.name}
        # A script without `tasuki.open_run` has no checkpoints, so there is nothing to check.
        if stage.name in stages and (own or stage.recipe is not None):
            results.append({"stage": stage.name, **_check_stage(folder, stage, own, progress)})
    return results


def read_records(run: RunFolder) -> Records:
    """Read what led to the newest checkpoint, in order."""
    found: Records = {}
    for event in read_events(run):
        name, step = parse_name(str(event.get("checkpoint"))), event.get("step")
        if event["kind"] == "committed" and name is not None and isinstance(step, int):
            found[name] = SampleRecord(str(event.get("stage")), step, event.get("used"))
    for name in list_checkpoints(run):
        with suppress(DamagedCheckpoint):  # its event may be intact
            manifest = read_manifest(run.checkpoints / str(name))
            at, facts = manifest.position, manifest.facts
            used, order = facts.get("used"), facts.get("order")
            found[name] = SampleRecord(at.stage, at.stage_step, used, order, exists=True)
    # The weights contain nothing of rolled back commits, nor of late ones of a replaced attempt.
    newest = dict(ancestry_of(run))
    ordered = sorted((n for n in found if n.claim in newest), key=lambda n: (n.claim, n.order))
    return {n: found[n] for n in ordered if n.order <= (newest[n.claim] or n).order}


def _check_stage(
    run: RunFolder, stage: ResolvedStage, records: Records, progress: ProgressCallback
) -> dict[str, Any]:
    finished = read_json_or_none(run.stage(stage.name).metrics) or {}
    # An event alone is no progress: a resume needs a checkpoint, and a damaged line may say 10**15.
    last = finished.get("steps") or max((r.step for r in records.values() if r.exists), default=0)
    if last == 0:
        return {"status": "not started"}
    attempts = {record.step: name.claim for name, record in records.items() if record.step <= last}
    used = {r.step: Used.from_json(r.used) for r in records.values() if r.used and r.step <= last}
    result = {"attempts": len({*attempts.values()}), "missing_records": len(attempts) - len(used)}
    order = _build_order(run, stage, records) if last in used else None
    if order is None:
        text = f"nothing is recorded of the samples up to its last step, {last:,}"
        return {**result, "status": "not recorded", "message": text}
    result["samples"] = used[last].count
    wrong = find_difference(
        order, used, lambda done: progress(Progress(f"checking {stage.name}", done, last))
    )
    if wrong is None:
        result["epochs"] = result["samples"] // order.samples_per_epoch
        text = f"{result['samples']:,} samples, {order.samples_per_epoch:,} per epoch"
        return {**result, "status": "verified", "message": text}
    text = (
        f"attempt {attempts[wrong.step]} used other samples between steps {wrong.after_step:,} and "
        f"{wrong.step:,} ({used[wrong.step].count:,} recorded by then, {wrong.expected:,} expected)"
    )
    text += "; have the data changed since?" if wrong.after_step == 0 else ""
    return {**result, "status": "wrong", "message": text}


def _build_order(run: RunFolder, stage: ResolvedStage, records: Records) -> Order | Gathered | None:
    """Build the order as a rank does (prepare.py). None: the loader is the user's own."""
    if stage.recipe is None:
        recorded = [record.order for record in records.values() if record.order is not None]
        return PlainOrder.from_json(recorded[-1]).steps() if recorded else None
    starts = (e for e in read_events(run) if e["kind"] == "worker-started")
    worlds = (e.get("ranks", 1) for e in starts if e.get("stage") == stage.name)
    seed_everything(start_seed(stage, "model", 0))  # opening the data may draw random numbers
    recipe = load_recipe(stage.recipe, stage.params, paths=[run.code, read_experiment(run)[1]])
    order = prepare_data(recipe, stage, rank=0, world=next(worlds, 1)).order
    return order if isinstance(order, Order) else None
