"""Begin a stage or resume it: both are the restore of a committed checkpoint (promise 2)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from tasuki.checkpoint.frozen import FrozenParameters
from tasuki.checkpoint.manifest import Manifest, Position
from tasuki.checkpoint.parts import read_part
from tasuki.checkpoint.retention import make_room
from tasuki.checkpoint.verify import read_manifest
from tasuki.checkpoint.weights import check_weights
from tasuki.data.fetch import seed_everything
from tasuki.data.fingerprint import Fingerprint
from tasuki.data.order import Order
from tasuki.data.used import NONE, Used, UsedSamples
from tasuki.errors import CheckpointError
from tasuki.estimation.intervals import SaveCost
from tasuki.failpoints import failpoint
from tasuki.loop.exact import describe, freeze
from tasuki.loop.latest import Loaded, agree_on_checkpoint
from tasuki.loop.ranks import wrap_module
from tasuki.loop.room import when_there_is_room
from tasuki.loop.saver import Saved, Saver
from tasuki.loop.starting import cost_before, say_differences, say_resuming
from tasuki.loop.state import State
from tasuki.runs.atomic import free_bytes, read_json
from tasuki.runs.view import count_preemptions
from tasuki.train.engine import StepEngine
from tasuki.train.exchange import measure_exchange
from tasuki.train.fingerprints import fingerprint_data, refuse_changed_data
from tasuki.train.fitting import Fitting
from tasuki.train.prepare import Setup, load_initial_weights, start_seed
from tasuki.train.snapshot import Progress, capture_all, restore_rank, restore_shared
from tasuki.train.task import Task
from tasuki.train.unused import find_unused, has_to_look, say_unused
from tasuki.units import format_bytes, format_seconds


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
    used: UsedSamples = field(default_factory=UsedSamples)
    """Which samples the stage has used so far; on rank 0 those of all ranks."""
    data: Fingerprint = field(default_factory=dict)
    """What the stage's data are; rank 0 alone knows."""
    start_cost: SaveCost | None = None
    """Of the stage's first checkpoint, or of the last save of an earlier attempt."""
    peak_bytes: int = 0
    """Of the device since the last epoch border, where anybody asks (borders.py)."""

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


def begin_or_resume(
    task: Task, setup: Setup, engine: StepEngine, saver: Saver, fitting: Fitting
) -> Begin:
    """Find the checkpoint to go on from, or commit the stage's first; then restore it."""
    with task.stopwatch.part("restore"):
        task.doing("looking for a checkpoint")
        newest, is_resumed, loaded = agree_on_checkpoint(task, from_weights=_from_weights(task))
        failpoint("start.found")
        begin = _make_begin(task, setup)
        name, cost = (newest, cost_before(task)) if is_resumed else (None, None)
        if task.is_first:
            begin = replace(begin, data=fingerprint_data(task, setup))
        if name is None:
            name, cost = _commit_start(task, setup, engine, saver, begin, parent=newest)
            failpoint("start.committed")
        _settle_buckets(task, setup, engine, fitting)
        if is_resumed and task.is_first:
            _refuse_changed_data(task, begin, name)
        task.doing("restoring")
        restored = restore_checkpoint(task, setup, engine, saver, name, loaded=loaded)
    if is_resumed:
        say_resuming(task, restored.manifest)
    task.event("restored", checkpoint=name, stage=task.stage.name, step=restored.progress.step)
    task.watch.tell("phase", phase="train", step=restored.progress.step, total=setup.total_steps)
    failpoint("start.restored")
    return restored.begin(begin, start_cost=cost)


@dataclass(frozen=True, slots=True)
class Restored:
    """A checkpoint's state is in model, optimizer, schedule and random generators."""

    manifest: Manifest
    progress: Progress
    last_row: dict[str, Any]
    used: UsedSamples

    def begin(self, begin: Begin, *, start_cost: SaveCost | None = None) -> Begin:
        return replace(
            begin,
            progress=self.progress,
            last_row=self.last_row,
            is_end=self.manifest.position.is_end,
            used=self.used,
            start_cost=start_cost,
            peak_bytes=int(self.manifest.facts.get("peak_bytes", 0)),
        )


def restore_checkpoint(
    task: Task,
    setup: Setup,
    engine: StepEngine,
    saver: Saver,
    name: str,
    *,
    loaded: Loaded | None = None,
) -> Restored:
    """Shared state from part 0 on every rank; each rank's own from its part."""
    path = task.run.checkpoints / name
    manifest = read_manifest(path)
    taken: set[int] = set()
    if loaded is None:
        records, frozen = manifest.files, manifest.frozen
        loaded = Loaded(read_part(path, 0, records=records, frozen=frozen, taken=taken), taken)
    unchanged = loaded.names_of_frozen()  # before their memory is given away
    progress, last_row = _restore(task, setup, engine, manifest, path, loaded.state)
    _refuse_lost_best(task, progress)
    progress.checkpoint, progress.saved_step = name, progress.step
    saver.parent = name
    saver.frozen = _frozen(task, setup, manifest, unchanged)
    told = manifest.facts.get("used")
    used = Used.from_json(told) if told and task.is_first else NONE
    return Restored(manifest, progress, last_row, UsedSamples(used))


def _refuse_lost_best(task: Task, progress: Progress) -> None:
    """Now, not when the stage is done."""
    if not task.is_first or progress.best is None:
        return
    path = task.run.stage(task.stage.name).path / progress.best.file
    if not path.is_file():
        raise CheckpointError(
            f"the best weights so far are gone: {path}",
            hint="put the file back from a copy, or start anew with `--new`",
        )


def _refuse_changed_data(task: Task, begin: Begin, name: str) -> None:
    manifest = read_manifest(task.run.checkpoints / name)
    before = manifest.facts.get("data")
    refuse_changed_data(task, before, begin.data, written_by=manifest.claim)


def _frozen(
    task: Task, setup: Setup, manifest: Manifest, unchanged: set[str]
) -> FrozenParameters | None:
    """What no step changes is stored once. Its file is known from the checkpoint, and holds what
    this checkpoint took from it: a parameter that moved since then is in the part, and stays there.
    """
    record = next(iter(manifest.frozen), None)
    if not task.is_first or record is None:
        return None
    found = [p for name, p in setup.model.named_parameters() if name in unchanged]
    frozen = FrozenParameters(found, _trained(setup))
    frozen.record = record
    return frozen


def _trained(setup: Setup) -> Iterator[Tensor]:
    return (p for group in setup.assembled.stepper.param_groups for p in group["params"])


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


def _commit_start(
    task: Task,
    setup: Setup,
    engine: StepEngine,
    saver: Saver,
    begin: Begin,
    *,
    parent: str | None,
) -> tuple[str, SaveCost]:
    """The stage's step 0: fresh optimizer, random numbers from (seed, stage)."""
    task.doing("loading weights")
    load_initial_weights(task, setup.model)
    task.doing("saving the first checkpoint")
    check_weights(setup.model.state_dict())  # now, not when the stage is done
    seed_everything(start_seed(task.stage, "start", task.ranks.rank))
    saver.parent = parent
    saved = when_there_is_room(
        lambda: _save_start(task, setup, engine, saver, begin),
        say=task.say,
        clock=task.clock,
        should_stop=lambda: task.ranks.world > 1,
    )
    task.watch.save_s.append(saved.total_s)
    name = saved.name
    assert name is not None
    task.event("committed", checkpoint=name, stage=task.stage.name, step=0, used=NONE.to_json())
    task.watch.tell("saved", checkpoint=name, is_start=True)
    return name, SaveCost(blocked_s=saved.blocked_s, total_s=saved.total_s)


def _save_start(task: Task, setup: Setup, engine: StepEngine, saver: Saver, begin: Begin) -> Saved:
    rank, state = task.ranks.rank, begin.progress
    if task.is_first:
        _refuse_full_disk(task, setup)
        saver.frozen = FrozenParameters(setup.model.parameters(), _trained(setup))
    saver.begin(
        begin.position_at(0, samples=0, is_start=True),
        capture_all(setup, engine, state, rank=rank, last_row={}),
        facts={"total_steps": setup.total_steps, "best": None, "data": begin.data},
        used=NONE if setup.data.knows_samples else None,
    )
    saved = saver.wait()
    assert saved is not None
    if saved.error is not None:
        raise saved.error
    return saved


def _refuse_full_disk(task: Task, setup: Setup) -> None:
    """Said before hours of training: weights, optimizer (about twice the trained ones), as many
    times as checkpoints are kept."""
    model = sum(t.numel() * t.itemsize for t in setup.model.state_dict().values())
    groups = setup.tracked.optimizer.param_groups
    trained = sum(p.numel() * p.itemsize for group in groups for p in group["params"])
    size = model + 2 * trained
    make_room(task.run, claim=task.orders.claim, need=size)
    free = free_bytes(task.run.path)
    room = free // max(1, size)
    wanted = task.stage.save.keep + 2
    if room < wanted:
        task.say(
            f"WARNING: `save.keep: {task.stage.save.keep}` needs room for {wanted} checkpoints of "
            f"about {format_bytes(size)}, {format_bytes(free)} free: fewer will be kept"
        )


def _settle_buckets(task: Task, setup: Setup, engine: StepEngine, fitting: Fitting) -> None:
    """DDP groups its gradients anew after its first step, and a compiler may fail at it: let them,
    before the state is restored."""
    if task.ranks.world == 1 and task.stage.compile is False:
        return
    if not isinstance(setup.order, Order):  # a loader of the user's own, which has one rank
        return
    task.doing("compiling" if engine.is_compiled else "settling the ranks")
    if engine.is_compiled:
        task.say("Compiling: this may take minutes")
    began = task.clock.monotonic()
    batch = fitting.first_batch()
    while not fitting.fits(engine, batch):
        batch = fitting.first_batch()
    with fitting.restarting():
        if task.ranks.world > 1:
            _allow_unused(task, setup, engine)
        engine.throw_away(batch)
        if engine.is_compiled:
            task.say(f"Compiled in {format_seconds(task.clock.monotonic() - began)}")
        if task.ranks.world > 1:
            device, clock = task.device, task.clock
            engine.exchange_s = measure_exchange(engine, batch, device=device, clock=clock)


def _allow_unused(task: Task, setup: Setup, engine: StepEngine) -> None:
    """Where the loss did not use all parameters, DDP has to know."""
    is_known = has_to_look(task, setup.recipe)
    unused, is_known = find_unused(setup.model, is_known=is_known, device=task.device)
    if unused and not is_known:
        say_unused(task, unused)
    if unused or is_known:
        engine.rewrap(lambda m: wrap_module(m, task.ranks, task.device, looks_for_unused=True))


def _restore(
    task: Task, setup: Setup, engine: StepEngine, manifest: Manifest, path: Path, shared: Any
) -> tuple[Progress, dict[str, Any]]:
    progress, last_row = restore_shared(setup, engine, shared)
    facts = describe(threads=task.threads, world=task.ranks.world, device=task.device)
    if task.stage.compile is not False:
        facts["compiled"] = engine.is_compiled
    if task.is_first:
        freeze(task.run, facts)
        say_differences(task, facts, world=manifest.world)
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


def _from_weights(task: Task) -> str:
    start = task.stage.init_from
    if start == "previous":
        start = task.experiment.stages[task.stage_number - 2].name
    return "" if start == "none" else f" from the weights of `{start}`"
