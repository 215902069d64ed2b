"""What one rank puts into a checkpoint, and how it is put back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from tasuki.errors import DataError
from tasuki.runtime.state import State, capture, capture_random, restore, restore_random
from tasuki.train.best import Best
from tasuki.train.engine import StepEngine
from tasuki.train.offload import OffloadedOptimizer
from tasuki.train.prepare import Setup


@dataclass(slots=True)
class Progress:
    """Where the stage stands."""

    step: int = 0
    samples: int = 0
    best: Best | None = None
    checkpoint: str | None = None
    """The last committed one: the parent of the next."""
    saved_step: int = -1
    validated_step: int = -1
    """Where the last validation was, if one is due there; it may be cut short by the end."""
    loader: dict[str, Any] | None = None
    """Where a loader of the user's own stands; ours stands where the step is."""
    skipped: int = 0
    """Steps left out because their gradient was not finite (`on_nan`)."""


def capture_all(
    setup: Setup, engine: StepEngine, progress: Progress, *, rank: int, last_row: dict[str, Any]
) -> State:
    """A rank's part: its own random states and unread losses; rank 0's also what all share."""
    window = [(loss.cpu(), float(weight), n) for loss, weight, n in engine.window.entries]
    state: State = {"rank": {"random": capture_random(), "window": window}}
    if rank == 0:
        state["shared"] = capture(setup.tracked)
        if engine.scaling is not None:
            state["scaling"] = engine.scaling.state()
        state["progress"] = {
            "plan": setup.order.plan.fingerprint(),
            "effective_batch": setup.order.effective_batch,
            "total_steps": setup.total_steps,
            "step": progress.step,
            "samples": progress.samples,
            "best": progress.best.as_json() if progress.best else None,
            "last_row": last_row,
            "loader": progress.loader,
            "skipped": progress.skipped,
            "validated_step": progress.validated_step,
        }
    return state


def restore_shared(
    setup: Setup, engine: StepEngine, state: State
) -> tuple[Progress, dict[str, Any]]:
    """Model, optimizer, schedule and progress; refused when the data are not the same any more."""
    told = state["progress"]
    for key, now in (
        ("plan", setup.order.plan.fingerprint()),
        ("effective_batch", setup.order.effective_batch),
        ("total_steps", setup.total_steps),
    ):
        if told[key] != now:
            what = "the data" if key == "plan" else f"`{key}`"
            was = "" if key == "plan" else f": {told[key]} before, {now} now"
            raise DataError(
                f"{what} changed since the last checkpoint{was}",
                hint="put it back as it was, or start anew with `--new`",
            )
    restore(setup.tracked, state["shared"])
    if isinstance(setup.assembled.stepper, OffloadedOptimizer):
        setup.assembled.stepper.refresh()
    if engine.scaling is not None and "scaling" in state:
        engine.scaling.restore(state["scaling"])
    best = Best.from_json(told["best"]) if told["best"] else None
    progress = Progress(
        told["step"],
        told["samples"],
        best,
        loader=told.get("loader"),
        skipped=told.get("skipped", 0),
        validated_step=told.get("validated_step", told["step"] or -1),
    )
    return progress, told["last_row"]


def restore_rank(engine: StepEngine, state: State, device: torch.device) -> None:
    window = state["rank"]["window"]
    engine.window.entries = [(loss.to(device), weight, times) for loss, weight, times in window]
    restore_random(state["rank"]["random"])
