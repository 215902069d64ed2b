"""The operations in which storage faults are made to happen, on a run folder of known content.

Each phase does what an attempt does there, through the functions an attempt calls, and says what it
acknowledges. `python -m tests.resume.storage.driver PHASE FOLDER` does one in a process of its own.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tasuki.checkpoint.codec import encode
from tasuki.checkpoint.commit import Checkpoint, discard_draft, open_draft, publish, sweep_drafts
from tasuki.checkpoint.frozen import store_frozen, sweep_frozen, sweep_frozen_drafts
from tasuki.checkpoint.host import HostBuffer
from tasuki.checkpoint.lineage import find_latest
from tasuki.checkpoint.manifest import Manifest, Position
from tasuki.checkpoint.parts import read_part, write_held, write_part
from tasuki.checkpoint.retention import make_room, prune, quarantine
from tasuki.checkpoint.verify import read_manifest, verify_from_disk
from tasuki.clock import SystemClock
from tasuki.errors import StoreError, TasukiError
from tasuki.runs.atomic import FORMAT, make_folder, write_bytes, write_json
from tasuki.runs.attempts import write_attempt_end, write_holder
from tasuki.runs.claims import highest_claim, record_parent, sweep_temps, take_claim
from tasuki.runs.finish import finish_run
from tasuki.runs.runs import RunFolder

KEEP = 2
torch.set_num_threads(1)  # a forked child would wait for ever for its parent's threads


def state_at(step: int, *, is_big: bool = False, is_held: bool = False) -> dict[str, Any]:
    """Differs in every checkpoint. A big one is worth reserving room for; one that is held in host
    memory is worth to be written past the cache."""
    size = 1_100_000 if is_held else 300_000 if is_big else 40
    return {
        "shared": {"w": torch.arange(float(size)) + step, "b": torch.full((3, 5), 0.5 * step)},
        "progress": {"step": step, "rows": [1, 2.5, None, "x"], "seen": (step, step + 1)},
        "rank": {"torch": torch.arange(16, dtype=torch.uint8), "python": b"\x00\xff" * 8},
    }


def frozen_tensors() -> dict[str, torch.Tensor]:
    return {"shared/teacher": torch.arange(64.0)}


def position(step: int) -> Position:
    return Position(
        stage="one",
        stage_number=1,
        step=step,
        stage_step=step,
        epoch=0,
        samples=step * 8,
        is_start=step == 0,
        is_end=False,
    )


def save(
    run: RunFolder,
    step: int,
    *,
    claim: int | None = None,
    world: int = 1,
    is_big: bool = False,
    has_frozen: bool = False,
    is_held: bool = False,
    parent: str | None = None,
) -> Checkpoint:
    """One whole save, as `loop.saver` does it; from live tensors, or from a copy of them."""
    claim = highest_claim(run) if claim is None else claim
    make_room(run, claim=claim, need=5_000)
    frozen = [store_frozen(run, frozen_tensors())] if has_frozen else []
    state = state_at(step, is_big=is_big, is_held=is_held)
    draft = open_draft(run, claim=claim, position=position(step))
    try:
        records = []
        for part in range(world):
            if is_held:
                records += write_held(draft, part, HostBuffer().hold(encode(state)))
            else:
                records += write_part(draft, part, state)
        return publish(
            run,
            draft,
            position=position(step),
            claim=claim,
            parent=parent,
            world=world,
            records=records,
            facts={"total_steps": 100},
            created_at=1e9,
            frozen=frozen,
        )
    except TasukiError:
        discard_draft(draft)
        raise


def save_and_look(run: RunFolder, step: int) -> str:
    """As an attempt's first save: read again from the disk before anybody counts on it."""
    checkpoint = save(run, step)
    verify_from_disk(checkpoint.path)
    return checkpoint.name


def begin_attempt(
    run: RunFolder, *, keep: int = KEEP, on_claim: Callable[[int], object] = lambda _: None
) -> tuple[int, Checkpoint | None]:
    """Take the run, find what to go on from, sweep what the ones before left."""
    claim = take_claim(run)
    on_claim(claim)
    write_holder(run, claim, job="job-01", start=1, at=1e9)
    damaged: list[str] = []
    latest = find_latest(run, lambda name, _: damaged.append(name))
    record_parent(run, claim, parent=latest.name if latest else None, facts={"job": "job-01"})
    sweep_drafts(run, claim=claim)
    sweep_frozen_drafts(run, claim=claim)
    sweep_temps(run, claim=claim)
    with contextlib.suppress(StoreError):  # what stays is passed over, or swept later
        for name in damaged:
            quarantine(run, name, claim=claim)
        prune(run, claim=claim, keep=keep)
    return claim, latest


def load(checkpoint: Path) -> Any:
    """A checkpoint's state, checked on the way."""
    manifest: Manifest = read_manifest(checkpoint)
    return read_part(checkpoint, 0, records=manifest.files, frozen=manifest.frozen)


# -- run folders of known content -----------------------------------------------------------------

NEW, OLD, RUNNING, LONG = "new", "old", "running", "long"


def make_run(path: Path, kind: str) -> RunFolder:
    """`new`: nothing committed. `old`: three attempts, two dead ones with leftovers. `running`: the
    third has committed too. `long`: nothing pruned for long."""
    run = RunFolder(path)
    make_folder(run.path)
    write_json(run.spec, {"format": FORMAT, "experiment": run.name, "stages": [{"name": "one"}]})
    if kind == NEW:
        _take(run, None)
        return run
    _take(run, None)
    for step in (0, 5, 10) if kind == LONG else (5, 10):
        newest = save(run, step).name
    write_attempt_end(run, 1, {"ending": "failed", "cause": "none"})
    _take(run, newest)
    newest = save(run, 15, parent=newest).name
    newest = save(run, 20, parent=newest).name
    _leave(run)
    _take(run, newest)
    if kind in (RUNNING, LONG):
        save(run, 25, claim=3, parent=newest, has_frozen=kind == LONG)
        save(run, 30, claim=3, has_frozen=kind == LONG)
    _train_stage(run)
    write_json(run.training_state, {"format": FORMAT, "state": "running", "step": 20})
    return run


def _take(run: RunFolder, parent: str | None) -> None:
    claim = take_claim(run)
    write_holder(run, claim, job="job-01", start=claim, at=1e9)
    record_parent(run, claim, parent=parent, facts={"job": "job-01"})


def _leave(run: RunFolder) -> None:
    """What a killed second attempt left behind."""
    draft = make_folder(run.checkpoints / ".draft-step-000000021.c2-0badcafe")
    (draft / "part-00000.json").write_bytes(b'{"format":1')
    trash = make_folder(run.checkpoints / ".trash-step-000000005.c1-0badcafe")
    (trash / "part-00000.json").write_bytes(b"{}")
    for folder in (run.path, run.claims / "1"):
        (folder / ".half.json.4711-0badcafe.tmp").write_bytes(b"{")


def _train_stage(run: RunFolder) -> None:
    """As if the stage's training were done: what `finish_run` reads."""
    stage = run.stage("one")
    make_folder(stage.path)
    write_bytes(stage.weights, b"weights")
    done = {"format": FORMAT, "steps": 30, "epochs": 1, "samples": 240, "sha256": "0" * 64}
    write_json(stage.metrics, {**done, "last": {"loss": 0.5}, "best": None})
    write_json(stage.evaluation, {"format": FORMAT, "data": "d", "metrics": {"mae": 1.0}})
    make_folder(run.metrics)
    rows = b'{"t": 1.0, "attempt": 1, "stage": "one", "step": 3, "split": "train", "loss": 1.0}\n'
    write_bytes(run.metrics / "1.jsonl", rows)


def make_small(path: Path) -> RunFolder:
    """Three checkpoints of two ranks in one attempt; the two newer ones share frozen parameters."""
    run = RunFolder(path)
    path.mkdir(parents=True)
    _take(run, None)
    for step in (10, 20, 30):
        save(run, step, world=2, has_frozen=step > 10)
    return run


def memory() -> Path | None:
    """Where an fsync costs nothing, for tests that are not about it."""
    return Path("/dev/shm") if Path("/dev/shm").is_dir() else None


def damage_newest(run: RunFolder) -> None:
    path = run.checkpoints / "step-000000030.c3" / "part-00000.safetensors"
    data = bytearray(path.read_bytes())
    data[-3] ^= 4
    path.write_bytes(data)


# -- phases ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Phase:
    """One operation. `act` gets the run and the number of the try; it gives what it vouches for."""

    kind: str
    act: Callable[[RunFolder, int], str]
    prepare: Callable[[RunFolder], None] | None = None


def _resume(run: RunFolder, number: int) -> str:
    _, latest = begin_attempt(run)
    assert latest is not None
    load(latest.path)
    return latest.name


def _prune(run: RunFolder, number: int) -> str:
    prune(run, claim=highest_claim(run), keep=KEEP)
    sweep_frozen(run, claim=highest_claim(run), keep=None)
    return "pruned"


def _finish(run: RunFolder, number: int) -> str:
    finish_run(run, claim=highest_claim(run), clock=SystemClock())
    return "marker"


def live(run: RunFolder, tell: Callable[[str], object], *, num_saves: int = 3) -> None:
    """A short run from its first file to its marker, in two attempts; says what is durable."""
    make_folder(run.path)
    write_json(run.spec, {"format": FORMAT, "experiment": run.name, "stages": [{"name": "one"}]})
    for steps in ((5, 10, 15), (20, 25, 30)):
        claim, latest = begin_attempt(run)
        for step in steps[-num_saves:]:
            parent = latest.name if latest else None
            latest = save(run, step, claim=claim, parent=parent, has_frozen=step >= 25)
            tell(latest.name)
            prune(run, claim=claim, keep=KEEP)
            sweep_frozen(run, claim=claim, keep=None)
    _train_stage(run)
    finish_run(run, claim=claim, clock=SystemClock())
    tell("marker")


PHASES = {
    "save": Phase(OLD, lambda run, number: save(run, 35 + number, is_big=True).name),
    "first": Phase(NEW, save_and_look),
    "ranks": Phase(OLD, lambda run, number: save(run, 35 + number, world=2).name),
    "held": Phase(OLD, lambda run, number: save(run, 35 + number, is_held=True).name),
    "frozen": Phase(OLD, lambda run, number: save(run, 35 + number, has_frozen=True).name),
    "prune": Phase(LONG, _prune),
    "resume": Phase(RUNNING, _resume),
    "fallback": Phase(RUNNING, _resume, damage_newest),
    "finish": Phase(RUNNING, _finish),
}


def write_into(folder: str, name: str, how: str, elsewhere: str) -> str:
    """Begin an attempt and save, in a run one of whose folders is not its own."""
    run = RunFolder(Path(folder) / "exp")
    path = run.path / name
    path.parent.mkdir(parents=True)
    if how == "linked":
        path.symlink_to(elsewhere)
    else:
        path.mkdir(exist_ok=True)
        os.chown(path, 12345, 12345)
    try:
        begin_attempt(run)
        save(run, 1)
    except TasukiError:
        return "refused"
    return "written"


if __name__ == "__main__":
    print("ACK", PHASES[sys.argv[1]].act(RunFolder(Path(sys.argv[2])), 0))
