"""A fresh word on when a stage will be done, after its first epoch; and later where that changes.

One line in the log and one event. Nothing is done at a step: the loop's next boundary is the epoch
border at which a look is due.
"""

from __future__ import annotations

import math

from tasuki.errors import StoreError
from tasuki.estimation.forecast import Ahead, look_ahead, planned_s
from tasuki.runs.atomic import read_json, shaped
from tasuki.runs.jobs import plan_path
from tasuki.train.prepare import Setup
from tasuki.train.task import Task
from tasuki.units import format_seconds

_LEAST_STEPS = 20
"""Between two looks; an epoch may be a single step."""


class Forecasts:
    """Of one stage in one attempt."""

    def __init__(self, task: Task, setup: Setup, *, first_step: int, began_at: float) -> None:
        self._task, self._setup = task, setup
        self._first_step, self._began_at = first_step, began_at
        self._told: Ahead | None = None
        self._said: Ahead | None = None
        per_epoch = setup.order.steps_per_epoch
        self.due = self._border(first_step + min(per_epoch, _LEAST_STEPS))
        """The step at which to look."""

    def look(self, step: int) -> None:
        """At the end of an epoch, with its validation and its save."""
        ahead = self._look_ahead(step)
        if ahead.is_news(self._told):
            self._tell(ahead, step)
            self._told = ahead
        self.due = self._border(step + _LEAST_STEPS)

    def _border(self, step: int) -> float:
        """The first epoch border from this step on; never, where that is the end."""
        per_epoch = self._setup.order.steps_per_epoch
        border = -(-step // per_epoch) * per_epoch
        return border if border < self._setup.total_steps else math.inf

    def _look_ahead(self, step: int) -> Ahead:
        known, done = self._task.watch.step_s, step - self._first_step
        return look_ahead(
            done=done,
            left=self._setup.total_steps - step,
            elapsed_s=self._task.clock.monotonic() - self._began_at,
            steps_per_epoch=self._setup.order.steps_per_epoch,
            first_steps=list(known) if len(known) == done else (),
        )

    def _tell(self, ahead: Ahead, step: int) -> None:
        task, total = self._task, self._setup.total_steps
        planned = self._planned(total - step)
        epochs = (step - self._first_step) / self._setup.order.steps_per_epoch
        by = "the last epoch" if epochs <= 1 else f"the last {epochs:.3g} epochs"
        if step == self._setup.order.steps_per_epoch:
            by = "the first epoch"
        said = f"; the plan said {format_seconds(planned)}" if planned is not None else ""
        if ahead.is_worth_a_line(self._said):
            self._said = ahead
            task.say(
                f"Forecast: stage {task.stage.name} ends in about {format_seconds(ahead.left_s)} "
                f"(90 %: {format_seconds(ahead.left_s_p90)}), by {by}{said}"
            )
        # In a file of its own: `status` finds it however long the attempt lasts.
        log = task.events.beside("forecast")
        log.add(
            "forecast",
            stage=task.stage.name,
            step=step,
            total_steps=total,
            left_s=round(ahead.left_s, 3),
            left_s_p90=round(ahead.left_s_p90, 3),
            planned_s=None if planned is None else round(planned, 3),
        )
        log.close()

    def _planned(self, left: int) -> float | None:
        """None: nobody planned it, or the plan is gone."""
        task = self._task
        try:
            with shaped(task.job.lanes):
                plan = read_json(plan_path(task.job.runs, read_json(task.job.lanes)["plan"]))
                names = task.experiment.name, task.stage.name
                return planned_s(plan, experiment=names[0], stage=names[1], left=left)
        except StoreError:
            return None
