"""Begin a stage or resume it: both are the restore of a committed checkpoint (promise 2)."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from tasuki.checkpoint.commit import Checkpoint, sweep_drafts
from tasuki.checkpoint.lineage import find_latest
from tasuki.checkpoint.manifest import Manifest, Position
from tasuki.checkpoint.parts import read_part
from tasuki.checkpoint.verify import read_manifest
from tasuki.checkpoint.weights import check_weights
from tasuki.clock import utc
from tasuki.data.fetch import seed_everything
from tasuki.data.order import Order
from tasuki.data.shares import share_of_step
from tasuki.errors import CheckpointError, DamagedCheckpoint
from tasuki.runtime.saver import Saver
from tasuki.runtime.state import State
from tasuki.store.atomic import read_json, read_json_or_none
from tasuki.store.claims import parent_of, record_parent
from tasuki.store.runs import RunFolder
from tasuki.telemetry.view import count_preemptions
from tasuki.train.engine import StepEngine
from tasuki.train.exact import describe, freeze, what_differs
from tasuki.train.prepare import Setup, load_initial_weights, start_seed
from tasuki.train.snapshot import Progress, capture_all, restore_rank, restore_shared
from tasuki.train.task import Task

_DECIDE_WITHIN = timedelta(minutes=30)


@dataclass(frozen=True, slots=True)
class Begin:
    """Where this attempt takes the stage up."""

    progress: Progress
    last_row: dict[str, Any]
    is_end: bool
    """All its steps were done already; only its end was interrupted."""
    preemptions: int
    steps_before: int
    """Steps of all earlier stages."""
    stage: str
    stage_number: int
    steps_per_epoch: int

    def position_at(
        self, step: int, *, samples: int, is_start: bool = False, is_end: bool = False
    ) -> Position:
        return Position(
            stage=self.stage,
            stage_number=self.stage_number,
            step=self.steps_before + step,
            stage_step=step,
            epoch=step // self.steps_per_epoch,
            samples=samples,
            is_start=is_start,
            is_end=is_end,
        )


def begin_or_resume(task: Task, setup: Setup, engine: StepEngine, saver: Saver) -> Begin:
    """Find the checkpoint to go on from, or commit the stage's first; then restore it."""
    with task.stopwatch.part("restore"):
        newest, is_resumed = _agree_on_checkpoint(task)
        begin = _make_begin(task, setup)
        name = newest if is_resumed else None
        if name is None:
            name = _commit_start(task, setup, engine, saver, begin, parent=newest)
        _settle_buckets(task, setup, engine)
        manifest = read_manifest(task.run.checkpoints / name)
        progress, last_row = _restore(task, setup, engine, manifest, task.run.checkpoints / name)
    progress.checkpoint, progress.saved_step = name, progress.step
    if is_resumed:
        _say_resuming(task, manifest)
    task.event("restored", checkpoint=name, stage=task.stage.name, step=progress.step)
    task.watch.tell("phase", phase="train", step=progress.step, total=setup.total_steps)
    return replace(begin, progress=progress, last_row=last_row, is_end=manifest.position.is_end)


def _make_begin(task: Task, setup: Setup) -> Begin:
    earlier = task.experiment.stages[: task.stage_number - 1]
    steps = [read_json(task.run.stage(stage.name).metrics)["steps"] for stage in earlier]
    return Begin(
        Progress(),
        {},
        is_end=False,
        preemptions=count_preemptions(task.run),
        steps_before=sum(steps),
        stage=task.stage.name,
        stage_number=task.stage_number,
        steps_per_epoch=setup.order.steps_per_epoch,
    )


def _agree_on_checkpoint(task: Task) -> tuple[str | None, bool]:
    """(the newest good one, is it of this stage). Rank 0 looks; the others take its word."""
    key = "tasuki/start"
    if task.is_first:
        found = _find_checkpoint(task)
        if task.ranks.store is not None:
            task.ranks.store.set(key, json.dumps(found))
        return found
    assert task.ranks.store is not None
    task.ranks.store.wait([key], _DECIDE_WITHIN)
    name, is_resumed = json.loads(task.ranks.store.get(key))
    return name, is_resumed


def _find_checkpoint(task: Task) -> tuple[str | None, bool]:
    """Verifies, falls back aloud, and records what this claim goes on from."""

    def report(name: str, error: DamagedCheckpoint) -> None:
        task.say(f"WARNING: checkpoint {name} is damaged, falling back to the one before: {error}")
        task.event("fell-back", checkpoint=name, reason=str(error))

    run, claim = task.run, task.orders.claim
    latest = find_latest(run, report)
    _refuse_lost(task, latest)
    is_recorded, _ = parent_of(run, claim)
    if not is_recorded:
        facts = {"at": utc(task.clock.wall()), "job": task.job.name}
        record_parent(run, claim, parent=latest.name if latest else None, facts=facts)
    sweep_drafts(run, claim=claim)
    _sweep_temps(run, claim=claim)
    if latest is not None and latest.manifest.position.stage == task.stage.name:
        return latest.name, True
    task.say(_starting_line(task))
    return (latest.name if latest else None), False


def _sweep_temps(run: RunFolder, *, claim: int) -> None:
    """What killed attempts left half-written. A zombie's rename then fails: good."""
    earlier = (run.claims / str(number) for number in range(1, claim))
    folders = [run.path, *run.stages.glob("*"), *earlier]
    for path in (path for folder in folders for path in folder.glob(".*.tmp")):
        path.unlink(missing_ok=True)


def _refuse_lost(task: Task, latest: Checkpoint | None) -> None:
    """A run that ever committed never starts over by itself."""
    told = read_json_or_none(task.run.training_state) or {}
    if latest is None and told.get("last_checkpoint"):
        raise CheckpointError(
            f"checkpoint {told['last_checkpoint']} of {task.run.path} is gone, and all others too",
            hint="put `checkpoints` back, or start anew with `tasuki run --new`",
        )
    if latest is not None and latest.manifest.position.stage_number > task.stage_number:
        raise CheckpointError(
            f"stage `{task.stage.name}` is not marked as done, but {latest.name} is of the later "
            f"stage `{latest.manifest.position.stage}`",
            hint=f"put stages/{task.stage.name}/metrics.json back, or start anew with `--new`",
        )


def _starting_line(task: Task) -> str:
    """A later attempt that has nothing to go on from says so; a stage's turn is nothing unusual."""
    if task.stage_number == 1 and task.orders.claim > 1:
        return f"No checkpoint found: starting stage {task.stage.name} from the beginning"
    start = task.stage.init_from
    if start == "previous":
        start = task.experiment.stages[task.stage_number - 2].name
    weights = "" if start == "none" else f" from the weights of `{start}`"
    return f"Starting stage {task.stage.name}{weights}"


def _commit_start(
    task: Task,
    setup: Setup,
    engine: StepEngine,
    saver: Saver,
    begin: Begin,
    *,
    parent: str | None,
) -> str:
    """The stage's step 0: fresh optimizer, random numbers from (seed, stage)."""
    load_initial_weights(task, setup.model)
    check_weights(setup.model.state_dict())  # now, not when the stage is done
    seed_everything(start_seed(task.stage, "start", task.ranks.rank))
    position = begin.position_at(0, samples=0, is_start=True)
    rank = task.ranks.rank
    began = task.clock.monotonic()
    state = capture_all(setup, engine, begin.progress, rank=rank, last_row={})
    checkpoint = saver.save(
        position, state, parent=parent, facts={"total_steps": setup.total_steps}
    )
    task.watch.save_s.append(task.clock.monotonic() - began)
    key = "tasuki/started"
    if checkpoint is None:
        assert task.ranks.store is not None
        task.ranks.store.wait([key], _DECIDE_WITHIN)
        return task.ranks.store.get(key).decode()
    if task.ranks.store is not None:
        task.ranks.store.set(key, checkpoint.name)
    task.event("committed", checkpoint=checkpoint.name, step=0, pruned=[])
    task.watch.tell("saved", checkpoint=checkpoint.name, is_start=True)
    return checkpoint.name


def _settle_buckets(task: Task, setup: Setup, engine: StepEngine) -> None:
    """DDP groups its gradients anew after its first step: let it, before the state is restored."""
    if task.ranks.world == 1:
        return
    assert isinstance(setup.order, Order)  # a loader of the user's own has one rank
    share = share_of_step(setup.order, 0, setup.data.split)
    engine.throw_away(setup.data.fetcher(share.requests[0]))


def _restore(
    task: Task, setup: Setup, engine: StepEngine, manifest: Manifest, path: Path
) -> tuple[Progress, dict[str, Any]]:
    """Shared state from part 0 on every rank; each rank's own from its part."""
    shared: Any = read_part(path, 0, records=manifest.files)
    progress, last_row = restore_shared(setup, shared)
    facts = describe(threads=task.threads, world=task.ranks.world, device=task.device)
    if task.is_first:
        freeze(task.run, facts)
        _say_differences(task, facts)
    rank = task.ranks.rank
    if manifest.world == task.ranks.world:
        own: State = (
            shared if rank == 0 else _as_state(read_part(path, rank, records=manifest.files))
        )
        restore_rank(engine, own, task.device)
    else:
        # Another number of ranks: the same samples in the same order, fresh random streams, and
        # losses that were not logged yet are left out of the next line.
        seed_everything(start_seed(task.stage, f"resume-{progress.step}-{task.ranks.world}", rank))
    return progress, last_row


def _as_state(value: object) -> State:
    assert isinstance(value, dict)
    return value


def _say_differences(task: Task, facts: dict[str, Any]) -> None:
    if not task.stage.exact:
        return
    changed = what_differs(task.run, facts)
    if changed:
        told = "; ".join(changed)
        task.say(
            f"WARNING: not as at the first start ({told}): from here on the same samples, but "
            "numbers only close, not bit for bit"
        )
        task.event("inexact", changed=changed)


def _say_resuming(task: Task, manifest: Manifest) -> None:
    at = manifest.position
    task.say(
        f"Resuming from epoch {at.epoch} step {at.stage_step} (sample {at.samples}) of stage "
        f"{at.stage}, attempt {task.orders.claim}"
    )
