"""The validations inside a stage's training: rank 0 validates, the others wait for it.

One may take longer than what is left of the notice, or of the job. So the state before it is kept
in host memory, with the word that the validation of this step is still to be done; the watch may
commit it, and the next attempt makes up for the validation.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import Any

from torch.distributed import DistStoreError, Store

from tasuki.checkpoint.manifest import parse_name
from tasuki.data.foreign import is_loader
from tasuki.errors import RecipeError
from tasuki.estimation.intervals import period_in_steps
from tasuki.failpoints import failpoint
from tasuki.loop.best import keep_if_better
from tasuki.loop.room import when_there_is_room
from tasuki.loop.saving import Saving
from tasuki.runs.values import Cause
from tasuki.spec.resolved import ResolvedValidate
from tasuki.train.advice import evaluation_advice
from tasuki.train.evaluate import batch_of, evaluate_model
from tasuki.train.prepare import Setup
from tasuki.train.recipe import optional
from tasuki.train.roomier import Decisions, evaluate_in_room
from tasuki.train.snapshot import Progress
from tasuki.train.task import Task

_ASK_AGAIN = timedelta(minutes=30)


class Validation:
    """Of one stage in one attempt."""

    def __init__(
        self,
        task: Task,
        setup: Setup,
        saving: Saving,
        progress: Progress,
        *,
        add_row: Callable[[dict[str, float]], None],
        round_name: str,
    ) -> None:
        """`round_name` tells the passes over a step apart: a stage may roll back."""
        self._task, self._setup, self._saving, self._progress = task, setup, saving, progress
        self._add_row = add_row
        self._round = round_name
        self._store: Store | None = None
        """A connection of its own: the watch's thread uses the first one meanwhile."""
        self.apart: Callable[[], AbstractContextManager[None]] = nullcontext
        """What a validation takes is not to count as training's (borders.py)."""
        self._longest_s: float | None = None
        self._decisions: Decisions | None = None
        validate = task.stage.validate
        per_epoch = setup.order.steps_per_epoch
        self.period = period_in_steps(validate.every, per_epoch) if validate else float("inf")

    def make_up(self) -> None:
        """Before the first step: of the stage's start, or what the last attempt could not end."""
        progress = self._progress
        if progress.validated_step >= progress.step or not self._is_due(progress.step):
            return
        self._run(progress.step)
        saved = parse_name(progress.checkpoint or "")
        if progress.step and saved is not None and saved.claim != self._task.orders.claim:
            progress.saved_step = -1  # a handover before the next step keeps the result

    def run_if_due(self, step: int) -> None:
        if not self._is_due(step):
            return
        is_last = step == self._setup.total_steps
        is_ending = self._task.ranks.world == 1 and self._task.watch.notice is not Cause.NONE
        if not is_ending or is_last:  # else the next attempt makes up for it
            self._run(step)

    def _is_due(self, step: int) -> bool:
        if self._task.stage.validate is None:
            return False
        return step % self.period == 0 or step == self._setup.total_steps

    def _run(self, step: int) -> None:
        task, began = self._task, self._task.clock.monotonic()
        if task.is_first:
            failpoint("loop.validate")
        is_held = self._first_says(f"held/{step}", self._wants_to_hold())
        if is_held:
            self._saving.hold_before_validation()
        task.watch.enter("validate")
        if task.is_first:
            assert task.stage.validate is not None
            with task.stopwatch.part("validate"), self.apart():
                self._validate(task.stage.validate, step)
        self._first_says(f"done/{step}", True)
        if is_held:
            self._saving.drop_after_validation()
        task.watch.enter("train")
        self._longest_s = max(task.clock.monotonic() - began, self._longest_s or 0.0)
        self._progress.validated_step = step

    def _wants_to_hold(self) -> bool:
        """Rank 0's to say."""
        is_saved = self._progress.saved_step == self._progress.step
        return not is_saved and self._saving.may_outlast(self._longest_s)

    def _validate(self, validate: ResolvedValidate, step: int) -> None:
        task, setup, sizes = self._task, self._setup, None
        if validate.data is None:
            sizes = task.stage.size
        decisions = self._decisions = self._decisions or Decisions(task, "validate")
        is_own = bool(optional(setup.recipe, "evaluate")) or is_loader(setup.validation)
        with evaluation_advice(task.stage, None if is_own else batch_of(task.stage)):
            found = evaluate_in_room(
                lambda most: evaluate_model(
                    setup.recipe,
                    setup.model,
                    setup.validation,
                    stage=task.stage,
                    device=task.device,
                    sizes=sizes,
                    most=most,
                ),
                stage=task.stage,
                most=decisions.at(step),
                decide=lambda halving: decisions.add(halving, step=step),
            )
        self._add_row(found)
        if validate.metric not in found:
            raise RecipeError(
                f"validation gives no `{validate.metric}`",
                hint=f"choose `validate.metric` among {', '.join(found)}, or let the recipe's "
                f"`evaluate` give it too",
            )
        self._progress.best = when_there_is_room(
            lambda: keep_if_better(
                task,
                setup.model.state_dict(),
                self._progress.best,
                metric=validate.metric,
                value=found[validate.metric],
                mode=validate.mode,
                step=step,
            ),
            say=task.say,
            clock=task.clock,
            should_stop=lambda: task.watch.notice is not Cause.NONE,
        )

    def _first_says(self, what: str, value: bool) -> bool:
        """What rank 0 says, on every rank, however long it takes to say it."""
        if self._task.ranks.world == 1:
            return value
        if self._store is None:
            self._store = self._task.ranks.connect()
        key = f"tasuki/validate/{self._round}/{what}"
        if self._task.is_first:
            self._store.set(key, json.dumps(value))
            return value
        while True:
            began = self._task.clock.monotonic()
            try:
                self._store.wait([key], _ASK_AGAIN)
                told: Any = json.loads(self._store.get(key))
                return bool(told)
            except DistStoreError:  # it takes long; or rank 0 is gone, which shows at once
                if self._task.clock.monotonic() - began < _ASK_AGAIN.total_seconds() / 2:
                    raise
