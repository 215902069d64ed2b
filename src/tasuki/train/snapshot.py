"""What one rank puts into a checkpoint, and how it is put back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from tasuki.checkpoint.manifest import Position
from tasuki.data.used import Used, UsedSamples
from tasuki.errors import DataError
from tasuki.loop.best import Best
from tasuki.loop.progress import Progress as Counted
from tasuki.loop.state import State, capture, capture_random, restore, restore_random
from tasuki.train.engine import StepEngine
from tasuki.train.offload import OffloadedOptimizer
from tasuki.train.prepare import Setup

if TYPE_CHECKING:  # it imports this
    from tasuki.train.start import Begin


@dataclass(slots=True)
class Progress(Counted):
    """Where the stage stands."""

    validated_step: int = -1
    """Where the last validation was, if one is due there; it may be cut short by the end."""
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


class StageContents:
    """What the checkpoints of a recipe's stage hold (loop/saving.py asks)."""

    def __init__(
        self,
        setup: Setup,
        engine: StepEngine,
        begin: Begin,
        *,
        rank: int,
        last_row: Callable[[], dict[str, Any]],
    ) -> None:
        self._setup, self._engine, self._begin = setup, engine, begin
        self._rank, self._last_row = rank, last_row
        self._progress: Progress = begin.progress
        self.samples: UsedSamples = begin.used
        self.peak_bytes: Callable[[], int] = int
        """Of the device, for a resume in the middle of an epoch; 0: nobody asks for it."""
        self._finite = {f"shared.model.{name}" for name, _ in setup.model.named_parameters()}

    def position(self, *, is_end: bool) -> Position:
        progress = self._progress
        return self._begin.position_at(progress.step, samples=progress.samples, is_end=is_end)

    def state(self) -> State:
        return capture_all(
            self._setup,
            self._engine,
            self._progress,
            rank=self._rank,
            last_row=self._last_row(),
        )

    def facts(self) -> dict[str, Any]:
        best = self._progress.best
        return {
            "total_steps": self._setup.total_steps,
            "steps_per_epoch": self._setup.order.steps_per_epoch,
            "best": best.as_json() if best else None,
            "data": self._begin.data,
            **({"peak_bytes": peak} if (peak := self.peak_bytes()) else {}),
        }

    def used(self) -> Used | None:
        return self.samples.total() if self._setup.data.knows_samples else None

    def must_be_finite(self, name: str) -> bool:
        return name in self._finite or name.startswith("rank.window.")

    def loss(self) -> Any:
        return self._last_row().get("loss")


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
