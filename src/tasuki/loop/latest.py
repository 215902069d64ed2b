"""Which checkpoint a stage goes on from: the newest good one, found by rank 0."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from torch import Tensor

from tasuki.checkpoint.commit import Checkpoint, sweep_drafts
from tasuki.checkpoint.frozen import sweep_frozen_drafts
from tasuki.checkpoint.lineage import find_latest
from tasuki.checkpoint.manifest import Manifest
from tasuki.checkpoint.parts import read_part
from tasuki.checkpoint.records import check_file
from tasuki.checkpoint.retention import prune, quarantine
from tasuki.checkpoint.verify import check_shape, verify
from tasuki.clock import utc
from tasuki.errors import CheckpointError, DamagedCheckpoint, StoreError
from tasuki.loop.worker import Worker
from tasuki.runs.atomic import read_json_or_none
from tasuki.runs.claims import parent_of, record_parent, sweep_temps
from tasuki.runs.events import read_events
from tasuki.runs.runs import RunFolder

_DECIDE_WITHIN = timedelta(minutes=30)


@dataclass(frozen=True, slots=True)
class Loaded:
    """Part 0 of a checkpoint, as it was read."""

    state: Any
    taken: set[int]
    """Addresses of the memory that comes from files of frozen parameters."""

    def names_of_frozen(self) -> set[str]:
        model = self.state["shared"]["model"] if "shared" in self.state else {}
        return {
            name
            for name, value in model.items()
            if isinstance(value, Tensor) and value.untyped_storage().data_ptr() in self.taken
        }


def agree_on_checkpoint(
    worker: Worker, *, from_weights: str = ""
) -> tuple[str | None, bool, Loaded | None]:
    """(the newest good one, is it of this stage, its state where it was read on the way).

    Rank 0 looks; the others take its word. `from_weights`: what a stage starts with, in words.
    """
    key = "tasuki/start"
    if worker.is_first:
        name, is_resumed, loaded = _find_checkpoint(worker, from_weights)
        if worker.ranks.store is not None:
            worker.ranks.store.set(key, json.dumps([name, is_resumed]))
        return name, is_resumed, loaded
    assert worker.ranks.store is not None
    worker.ranks.store.wait([key], _DECIDE_WITHIN)
    name, is_resumed = json.loads(worker.ranks.store.get(key))
    return name, is_resumed, None


def _find_checkpoint(worker: Worker, from_weights: str) -> tuple[str | None, bool, Loaded | None]:
    """Verifies, falls back aloud, and records what this claim goes on from."""
    damaged: list[str] = []
    states: dict[str, Loaded] = {}

    def report(name: str, error: DamagedCheckpoint) -> None:
        damaged.append(name)
        worker.say(
            f"WARNING: checkpoint {name} is damaged, falling back to the one before: {error}"
        )
        worker.event("fell-back", checkpoint=name, reason=str(error))

    def check(path: Path) -> Manifest:
        manifest = check_shape(path)
        if manifest.position.stage != worker.stage.name:
            return verify(path)
        # One pass over the bytes: they are checked while they are read.
        taken: set[int] = set()
        records, frozen = manifest.files, manifest.frozen
        state = read_part(path, 0, records=records, frozen=frozen, taken=taken)
        states[path.name] = Loaded(state, taken)
        for record in manifest.files[2:]:
            check_file(path / record.name, record)
        return manifest

    run, claim = worker.run, worker.claim
    latest = find_latest(run, report, check=check)
    _refuse_lost(worker, latest)
    is_recorded, _ = parent_of(run, claim)
    if not is_recorded:
        facts = {"at": utc(worker.clock.wall()), "job": worker.job_name}
        record_parent(run, claim, parent=latest.name if latest else None, facts=facts)
    _sweep(worker, damaged)
    if latest is not None and latest.manifest.position.stage == worker.stage.name:
        return latest.name, True, states.get(latest.name)
    worker.say(_starting_line(worker, from_weights))
    return (latest.name if latest else None), False, None


def _sweep(worker: Worker, damaged: list[str]) -> None:
    """What killed attempts left half-written goes; what is damaged is put aside."""
    run, claim = worker.run, worker.claim
    sweep_drafts(run, claim=claim)
    sweep_frozen_drafts(run, claim=claim)
    sweep_temps(run, claim=claim)
    for name in damaged:
        with contextlib.suppress(StoreError):  # gone or not to be moved: it is passed over anyway
            aside = quarantine(run, name, claim=claim)
            worker.say(f"WARNING: the damaged checkpoint is kept aside as {aside}")
    with contextlib.suppress(StoreError):  # an attempt that was killed before its own prune
        prune(run, claim=claim, keep=worker.stage.save.keep)


def _refuse_lost(worker: Worker, latest: Checkpoint | None) -> None:
    """A run that ever committed never starts over by itself."""
    lost = _last_told(worker.run) if latest is None else None
    if lost is not None:
        raise CheckpointError(
            f"checkpoint {lost} of {worker.run.path} is gone, and all others too",
            hint=_how_to_mend("checkpoints", worker),
        )
    if latest is not None and latest.manifest.position.stage_number > worker.stage_number:
        raise CheckpointError(
            f"stage `{worker.stage.name}` is not marked as done, but {latest.name} is of the later "
            f"stage `{latest.manifest.position.stage}`",
            hint=_how_to_mend(f"stages/{worker.stage.name}/metrics.json", worker),
        )


def _how_to_mend(part: str, worker: Worker) -> str:
    """A script may have been started by itself: no verb of ours began its run."""
    if worker.stage.command is None:
        return f"put `{part}` back, or start anew with `tasuki run --new`"
    return f"put `{part}` back, or begin another run: TASUKI_NAME=other before the same command"


def _last_told(run: RunFolder) -> str | None:
    """The last checkpoint that anything in the run's folder tells of."""
    state = read_json_or_none(run.training_state) or {}
    events = (e.get("checkpoint") for e in read_events(run) if e["kind"] == "committed")
    told = [name for name in [state.get("last_checkpoint"), *events] if isinstance(name, str)]
    return told[-1] if told else None


def _starting_line(worker: Worker, from_weights: str) -> str:
    """A later attempt that has nothing to go on from says so; a stage's turn is nothing unusual."""
    if worker.stage_number == 1 and worker.claim > 1:
        return f"No checkpoint found: starting stage {worker.stage.name} from the beginning"
    return f"Starting stage {worker.stage.name}{from_weights}"
