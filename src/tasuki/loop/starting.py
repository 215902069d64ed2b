"""What every start tells and asks, recipe or not."""

from __future__ import annotations

import contextlib
from typing import Any

from tasuki.checkpoint.manifest import Manifest
from tasuki.checkpoint.parts import read_part
from tasuki.checkpoint.retention import make_room
from tasuki.checkpoint.verify import read_manifest
from tasuki.data.used import NONE
from tasuki.errors import StoreError
from tasuki.estimation.intervals import SaveCost
from tasuki.loop.agreement import Agreement, SoloAgreement, StoreAgreement
from tasuki.loop.exact import what_differs
from tasuki.loop.latest import Loaded
from tasuki.loop.room import when_there_is_room
from tasuki.loop.saver import Saver
from tasuki.loop.saving import Contents
from tasuki.loop.worker import Worker
from tasuki.runs.view import last_save_s


def cost_before(worker: Worker) -> SaveCost | None:
    """So that a resumed attempt knows how long a save takes before it makes one."""
    told = None
    with contextlib.suppress(StoreError):
        told = last_save_s(worker.run, before=worker.claim)
    if told is None:
        return None
    worker.watch.save_s.append(told[1])
    return SaveCost(blocked_s=told[0], total_s=told[1])


def make_saver(worker: Worker) -> Saver:
    return Saver(
        worker.run,
        claim=worker.claim,
        rank=worker.ranks.rank,
        world=worker.ranks.world,
        connect=worker.ranks.connect,
        clock=worker.clock,
        is_pinned=worker.device.type == "cuda",
    )


def make_agreement(
    worker: Worker, *, name: str, steps_done: int, looks_every_s: float | None = None
) -> Agreement:
    """`name` tells rounds of one process apart."""
    if worker.ranks.world == 1:
        return SoloAgreement(worker.watch)
    return StoreAgreement(
        worker.ranks.connect,
        name=name,
        rank=worker.ranks.rank,
        world=worker.ranks.world,
        watch=worker.watch,
        steps_done=steps_done,
        looks_every_s=looks_every_s,
    )


def load_state(worker: Worker, name: str) -> Loaded:
    """Part 0 of a checkpoint, checked while it is read."""
    path = worker.run.checkpoints / name
    manifest, taken = read_manifest(path), set[int]()
    state = read_part(path, 0, records=manifest.files, frozen=manifest.frozen, taken=taken)
    return Loaded(state, taken)


def commit_first(worker: Worker, saver: Saver, contents: Contents) -> tuple[str, SaveCost]:
    """Step 0, as a script has made it: what cannot be stored is refused now. Its name."""

    def act() -> tuple[str, SaveCost]:
        if worker.is_first:
            make_room(worker.run, claim=worker.claim, need=0)
        position, state = contents.position(is_end=False), contents.state()
        saver.begin(position, state, facts=contents.facts(), used=contents.used())
        saved = saver.wait()
        assert saved is not None
        if saved.error is not None:
            raise saved.error
        assert saved.name is not None
        worker.watch.save_s.append(saved.total_s)
        return saved.name, SaveCost(blocked_s=saved.blocked_s, total_s=saved.total_s)

    name, cost = when_there_is_room(
        act, say=worker.say, clock=worker.clock, should_stop=lambda: worker.ranks.world > 1
    )
    facts = {"used": NONE.to_json()} if contents.used() is not None else {}
    worker.event("committed", checkpoint=name, stage=worker.stage.name, step=0, **facts)
    return name, cost


def say_differences(worker: Worker, facts: dict[str, Any], *, world: int) -> None:
    """`world`: as it was when the checkpoint was made. Stages of a run may have their own."""
    if not worker.stage.exact:
        return
    changed = what_differs(worker.run, facts, world=world)
    if changed:
        told = "; ".join(changed)
        worker.say(
            f"WARNING: not as at the first start ({told}): from here on the same samples, but "
            "numbers only close, not bit for bit"
        )
        worker.event("inexact", changed=changed)


def say_resuming(worker: Worker, manifest: Manifest) -> None:
    at = manifest.position
    worker.say(
        f"Resuming from epoch {at.epoch} step {at.stage_step} (sample {at.samples}) of stage "
        f"{at.stage}, attempt {worker.claim}"
    )
