"""Back to a checkpoint inside an attempt: where something was not finite.

A resume is something else: it is a start (start.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tasuki.failpoints import failpoint
from tasuki.loop.saver import Saver
from tasuki.train.engine import StepEngine
from tasuki.train.prepare import Setup
from tasuki.train.start import Begin, restore_checkpoint
from tasuki.train.task import Task

if TYPE_CHECKING:
    from tasuki.train.training import Training


def roll_back(
    task: Task, setup: Setup, engine: StepEngine, saver: Saver, training: Training
) -> Begin:
    """Go back to the last checkpoint, where all was finite; what follows is then checked."""
    name = training.progress.checkpoint
    assert name is not None
    failpoint("loop.roll-back")
    with task.stopwatch.part("restore"):
        engine.window.entries.clear()
        restored = restore_checkpoint(task, setup, engine, saver, name)
    task.say(
        f"WARNING: not finite before step {training.progress.step}: rolled back to {name}; steps "
        "whose gradient is not finite are left out up to there"
    )
    task.event(
        "rolled-back",
        stage=task.stage.name,
        step=training.progress.step,
        to_step=restored.progress.step,
        checkpoint=name,
    )
    return restored.begin(training.begin, start_cost=training.saving.cost)
