"""Which checkpoint an attempt of a loop goes on from: looked for once, the same on all ranks.

It is the newest good one; where all its steps are done and only what follows the loop is missing,
the one before the last step (replay.py).
"""

from __future__ import annotations

from dataclasses import dataclass

from tasuki.checkpoint.verify import read_manifest
from tasuki.integrations.course import Course
from tasuki.integrations.replay import agree_on_replay, is_open_end
from tasuki.loop.latest import Loaded, agree_on_checkpoint
from tasuki.loop.starting import load_state
from tasuki.loop.state import State
from tasuki.loop.worker import Worker


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Of a first start it is the parent of the checkpoint that will be made, or nothing."""

    name: str | None
    is_resumed: bool
    loaded: Loaded | None
    """Of what is resumed, until it is restored: a large state is not kept twice."""
    replayed: str | None = None
    """The last step is done once more: the checkpoint after it, which stays the last."""

    def shared(self) -> State | None:
        """None: a first start."""
        return self.loaded.state["shared"] if self.is_resumed and self.loaded is not None else None

    def stands_at(self, worker: Worker) -> tuple[Course | None, int, bool]:
        """(its course, its step, is that the last one)."""
        if not self.is_resumed or self.loaded is None:
            return None, 0, False
        told = self.loaded.state["progress"]
        facts = dict(told["course"])
        course = Course(
            total_steps=facts.pop("total_steps"),
            steps_per_epoch=facts.pop("steps_per_epoch"),
            facts=facts,
            knows_samples=bool(told["knows_samples"]),
        )
        at = read_manifest(worker.run.checkpoints / str(self.name)).position
        return course, at.stage_step, at.is_end


def find_origin(worker: Worker, *, replays: bool) -> Origin:
    """`replays`: may the last step be done once more?"""
    name, is_resumed, loaded = agree_on_checkpoint(worker)
    if not is_resumed:
        return Origin(name=name, is_resumed=False, loaded=loaded)
    assert name is not None
    if loaded is None:  # on a rank that took rank 0's word for it
        loaded = load_state(worker, name)
    if replays and is_open_end(worker, name, loaded.state["progress"]):
        before = agree_on_replay(worker, name)
        if before is not None:
            loaded = None  # a large state is not kept twice
            state = load_state(worker, before)
            return Origin(name=before, is_resumed=True, loaded=state, replayed=name)
    return Origin(name=name, is_resumed=True, loaded=loaded)
