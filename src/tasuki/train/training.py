"""The training of one stage: begin or resume, steps, saves, handover or end.

Read top to bottom: `run_training` is the whole way. Every start is the restore of a committed
checkpoint, the first one included; every step boundary may be the last.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import Any, TypeVar

import torch.distributed as dist

from tasuki.checkpoint.retention import prune
from tasuki.clock import utc
from tasuki.data.foreign import ForeignLoader
from tasuki.data.loader import Loader, MicroBatch
from tasuki.errors import EXIT_RESUME_ME, RecipeError, RunError
from tasuki.relay.values import Ending
from tasuki.runtime.agreement import Agreement, Decision, SoloAgreement, StoreAgreement
from tasuki.runtime.saver import Saver
from tasuki.runtime.watch import leave
from tasuki.store.atomic import FORMAT, write_json
from tasuki.telemetry.metrics import MetricLog
from tasuki.train.advice import memory_advice
from tasuki.train.best import keep_best, sweep_best
from tasuki.train.data import make_loader
from tasuki.train.engine import StepEngine
from tasuki.train.evaluate import evaluate_model
from tasuki.train.finish import finish_stage
from tasuki.train.pace import Pace, first_settings
from tasuki.train.prepare import Setup, build_engine, prepare
from tasuki.train.rhythm import SaveRhythm, next_multiple, period_in_steps
from tasuki.train.snapshot import Progress, capture_all
from tasuki.train.start import Begin, begin_or_resume
from tasuki.train.task import Task

T = TypeVar("T")
_TELL_OFTEN_S = 1.0
_TELL_SELDOM_S = 10.0
_OFTEN_FOR_S = 60.0


_ROW = {"t", "attempt", "stage", "epoch", "step", "samples", "split", "lr", "samples_per_sec"}


def _named(values: dict[str, float]) -> dict[str, float]:
    """A recipe's numbers must not take the place of a row's own."""
    taken = sorted(_ROW & set(values))
    if taken:
        raise RecipeError(
            f"a number to log is called `{taken[0]}`, which a line of metrics has already",
            hint="give it another name",
        )
    return values


class NotFinite(RunError):
    """The loss is NaN or infinite; exactness makes trying again pointless."""

    is_mistake = True


def run_training(task: Task) -> None:
    """Returns when the stage is done; leaves the process at a handover."""
    with task.stopwatch.part("start"):
        setup = prepare(task)
    saver = Saver(
        task.run,
        claim=task.orders.claim,
        rank=task.ranks.rank,
        world=task.ranks.world,
        store=task.ranks.store,
        clock=task.clock,
    )
    with memory_advice(task, setup) as place:
        engine = build_engine(task, setup)
        begin = begin_or_resume(task, setup, engine, saver)
        place.begin(begin.progress)
        training = Training(task, setup, engine, saver, begin)
        training.run()
        training.finish()


class Training:
    """The loop and what happens at its step boundaries."""

    def __init__(
        self, task: Task, setup: Setup, engine: StepEngine, saver: Saver, begin: Begin
    ) -> None:
        self.task, self.setup, self.engine = task, setup, engine
        stage, order = task.stage, setup.order
        self._saver = saver
        self._begin = begin
        self.progress: Progress = begin.progress
        self._first_step = begin.progress.step
        self.metrics = MetricLog(task.run, claim=task.orders.claim, clock=task.clock)
        self.last_row: dict[str, Any] = begin.last_row
        per_epoch = order.steps_per_epoch
        self._log_period = period_in_steps(stage.log_every, per_epoch)
        self._validate_period = (
            period_in_steps(stage.validate.every, per_epoch) if stage.validate else float("inf")
        )
        now = task.clock.monotonic()
        self._rhythm = SaveRhythm(stage.save.every, steps_per_epoch=per_epoch, now=now)
        self._wait_s = 0.0
        self._began_at = now
        self._born_at = now - task.stopwatch.lived_s
        self._tell_at = now
        self._logged_at, self._logged_samples = now, begin.progress.samples

    # -- the loop ---------------------------------------------------------------------------

    def run(self) -> None:
        loader = self._make_loader()
        agreement = self._make_agreement()
        if self.task.is_first:
            self.metrics.resume(stage=self.task.stage.name, step=self.progress.step)
        if self.progress.step == 0:
            self._validate_if_due(0)
        self.task.watch.before_leaving = loader.stop
        self.task.watch.hold_on()
        self._set_boundary()
        for batches, num_samples in self._timed(loader.steps()):
            while (decision := agreement.begin_step(self.progress.step)) is not Decision.GO:
                if decision is Decision.STOP:
                    self._hand_over(loader)
                self._save()
            self._step(batches, num_samples)
            self.progress.loader = loader.state()  # now: the next step is not fetched yet
            now = self.task.clock.monotonic()
            if self.progress.step >= self._boundary or now >= self._tell_at:
                self._at_boundary(now, agreement)
        loader.stop()

    def _step(self, batches: Iterator[MicroBatch], num_samples: int) -> None:
        """One step and its times. Nothing here reads a tensor."""
        began, waited = self.task.clock.monotonic(), self._wait_s
        if self.setup.schedule is not None:
            self.setup.schedule.set_for(self.progress.step)
        self.engine.step(self._timed(batches), num_samples)
        if self.setup.tracked.schedule is not None:
            self.setup.tracked.schedule.step()  # type: ignore[attr-defined]
        self.progress.step += 1
        self.progress.samples += num_samples
        taken = self.task.clock.monotonic() - began
        parts = self.task.stopwatch.parts
        parts["data_wait"] = parts.get("data_wait", 0.0) + self._wait_s
        parts["step"] = parts.get("step", 0.0) + taken - (self._wait_s - waited)
        self._wait_s = 0.0
        self.task.watch.step_s.append(taken)
        self._pace.count_step()

    def _timed(self, items: Iterator[T]) -> Iterator[T]:
        """The same items; the time until each comes is data wait."""
        monotonic = self.task.clock.monotonic
        while True:
            began = monotonic()
            item = next(items, None)
            self._wait_s += monotonic() - began
            if item is None:
                return
            yield item

    def _set_boundary(self) -> None:
        """The next step count at which something is due; until then a step costs nothing more."""
        step = self.progress.step
        periods = (self._log_period, self._validate_period, self._rhythm.period)
        due = [next_multiple(step, period) for period in periods]
        # Automatic saves look at epoch ends.
        due.append(next_multiple(step, self.setup.order.steps_per_epoch))
        self._boundary = min([*due, self.setup.total_steps])

    def _at_boundary(self, now: float, agreement: Agreement) -> None:
        step = self.progress.step
        if step % self._log_period == 0 or step == self.setup.total_steps:
            self._log(now)
        self._validate_if_due(step)
        if now >= self._tell_at:
            self._tell(now)
            self._pace.look()
        if step == self.setup.total_steps:
            return  # the end saves
        if step % self._rhythm.period == 0:
            self._save()
        elif self.task.is_first and self._rhythm.is_due_by_time(step, now):
            agreement.want_save()
        self._set_boundary()

    # -- what is due at a boundary ------------------------------------------------------------

    def _log(self, now: float) -> None:
        sums = self.engine.window.sums(self.task.device)
        if self.task.ranks.world > 1:
            dist.all_reduce(sums)
        total, weight = sums.tolist()
        self._refuse_nan(total)
        loss = total / weight if weight else 0.0
        self.engine.window.entries.clear()
        if not self.task.is_first:
            return
        rate = (self.progress.samples - self._logged_samples) / max(1e-9, now - self._logged_at)
        self._logged_at, self._logged_samples = now, self.progress.samples
        row = self._row("train") | {"loss": loss, "lr": self._lr()}
        row |= _named({name: float(value) for name, value in self.engine.scalars.items()})
        self.last_row = row
        self.metrics.add({**row, "samples_per_sec": round(rate, 3)})

    def _validate_if_due(self, step: int) -> None:
        """Also before the first step: what a stage starts from may stay the best."""
        validate = self.task.stage.validate
        if validate is None or not self.task.is_first:
            return
        if step % self._validate_period and step != self.setup.total_steps:
            return
        with self.task.stopwatch.part("validate"):
            found = evaluate_model(
                self.setup.recipe,
                self.setup.model,
                self.setup.validation,
                stage=self.task.stage,
                device=self.task.device,
                sizes=self.task.stage.size if validate.data is None else None,
            )
            self.metrics.add(self._row("val") | _named(found))
            self.progress.best = keep_best(
                self.task, self.setup.model, found, validate, self.progress.best, step=step
            )

    def _row(self, split: str) -> dict[str, Any]:
        return {
            "stage": self.task.stage.name,
            "epoch": self.progress.step // self.setup.order.steps_per_epoch,
            "step": self.progress.step,
            "samples": self.progress.samples,
            "split": split,
        }

    def _lr(self) -> float:
        return float(self.setup.tracked.optimizer.param_groups[0]["lr"])

    def _refuse_nan(self, total: float) -> None:
        if total - total != 0.0:  # true for NaN and for infinities
            where = f"stage `{self.task.stage.name}` at or before step {self.progress.step}"
            raise NotFinite(
                f"the loss or a weight became {total} in {where}; the last good checkpoint is "
                f"{self.progress.checkpoint}",
                hint="look at the data (`tasuki data check FILE` finds NaN), or lower `lr`; then "
                "`tasuki resume`",
            )

    def _tell(self, now: float) -> None:
        """A sign of life, for the supervisor, `status` and the ledger."""
        often = now - self._began_at < _OFTEN_FOR_S
        self._tell_at = now + (_TELL_OFTEN_S if often else _TELL_SELDOM_S)
        step, total = self.progress.step, self.setup.total_steps
        self.task.watch.tell("step", step=step, total=total)
        self._event_progress()

    def _event_progress(self) -> None:
        watch = self.task.stopwatch
        self.task.event(
            "progress",
            stage=self.task.stage.name,
            epoch=self.progress.step // self.setup.order.steps_per_epoch,
            step=self.progress.step,
            total_steps=self.setup.total_steps,
            samples=self.progress.samples,
            from_step=self._first_step,
            loss=self.last_row.get("loss"),
            step_s=median(self.task.watch.step_s) if self.task.watch.step_s else None,
            lived_s=round(watch.lived_s, 4),
            parts=watch.rounded(),
        )

    # -- saves --------------------------------------------------------------------------------

    def _save(self, *, is_end: bool = False) -> None:
        if self.progress.saved_step == self.progress.step and not is_end:
            return
        began = self.task.clock.monotonic()
        with self.task.stopwatch.part("save"):
            self._commit(is_end=is_end)
        now = self.task.clock.monotonic()
        self.task.watch.save_s.append(now - began)
        self._rhythm.saved(now=now, cost_s=now - began)

    def _commit(self, *, is_end: bool) -> None:
        self._refuse_nan(float(self.engine.window.sums(self.task.device)[0]))
        if not all(bool(p.isfinite().all()) for p in self.setup.model.parameters()):
            self._refuse_nan(float("nan"))
        self.metrics.sync()
        position = self._begin.position_at(
            self.progress.step, samples=self.progress.samples, is_end=is_end
        )
        best = self.progress.best
        checkpoint = self._saver.save(
            position,
            capture_all(
                self.setup,
                self.engine,
                self.progress,
                rank=self.task.ranks.rank,
                last_row=self.last_row,
            ),
            parent=self.progress.checkpoint,
            facts={"total_steps": self.setup.total_steps, "best": best.as_json() if best else None},
        )
        self.progress.saved_step = self.progress.step
        if checkpoint is None:
            return
        self.progress.checkpoint = checkpoint.name
        pruned = prune(self.task.run, claim=self.task.orders.claim, keep=self.task.stage.save.keep)
        sweep_best(self.task.run, self.task.stage.name, claim=self.task.orders.claim, keep=best)
        self.task.event(
            "committed", checkpoint=checkpoint.name, step=self.progress.step, pruned=pruned
        )
        self.task.watch.tell("saved", checkpoint=checkpoint.name, is_start=False)
        self._write_state()

    def _write_state(self) -> None:
        best = self.progress.best
        write_json(
            self.task.run.training_state,
            {
                "format": FORMAT,
                "experiment": self.task.run.name,
                "state": "running",
                "stage": self.task.stage.name,
                "epoch": self.progress.step // self.setup.order.steps_per_epoch,
                "step": self.progress.step,
                "total_steps": self.setup.total_steps,
                "samples": self.progress.samples,
                "attempt": self.task.orders.claim,
                "preemptions": self._begin.preemptions,
                "best": best.as_json() if best else None,
                "last_checkpoint": self.progress.checkpoint,
                "loss": self.last_row.get("loss"),
                "updated_at": utc(self.task.clock.wall()),
            },
        )

    # -- the end ------------------------------------------------------------------------------

    def _hand_over(self, loader: Loader | ForeignLoader) -> None:
        """Commit the last finished step and leave. Does not return."""
        loader.stop()  # first: a dying loader worker must not disturb the save
        with self.task.stopwatch.part("handover"):
            self._save()
        self.task.say(
            f"Handing over at step {self.progress.step} of {self.setup.total_steps} of stage "
            f"{self.task.stage.name} ({self.task.watch.notice})"
        )
        self._event_progress()
        self.task.event("handed-over", step=self.progress.step, cause=self.task.watch.notice)
        self.task.ranks.say_goodbye()
        leave(self.task.watch, ending=Ending.HANDED_OVER, status=EXIT_RESUME_ME)

    def finish(self) -> None:
        """All steps are done: the last checkpoint, then the weights, then the stage's marker."""
        if self._begin.is_end:
            self.progress.saved_step = self.progress.step
        else:
            self._save(is_end=True)
        if self.task.is_first:
            start_s = self._began_at - self._born_at
            finish_stage(self.task, self.setup, self.progress, self.last_row, start_s=start_s)
        self._event_progress()

    def _make_loader(self) -> Loader | ForeignLoader:
        loader = make_loader(
            self.setup.data,
            first_step=self.progress.step,
            total_steps=self.setup.total_steps,
            settings=first_settings(self.task, self.setup.data.fetcher),
            state=self.progress.loader,
            say=self.task.say,
        )
        self._pace = Pace(self.task, loader)
        return loader

    def _make_agreement(self) -> Agreement:
        if self.task.ranks.world == 1:
            return SoloAgreement(self.task.watch)
        return StoreAgreement(
            self.task.ranks.connect,
            name=self.task.stage.name,
            rank=self.task.ranks.rank,
            world=self.task.ranks.world,
            watch=self.task.watch,
            steps_done=self.progress.step,
        )
