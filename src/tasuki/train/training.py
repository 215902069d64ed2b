"""The training of one stage: begin or resume, steps, saves, handover or end.

Read top to bottom: `run_training` is the whole way. Every start is the restore of a committed
checkpoint, the first one included; every step boundary may be the last.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any

from tasuki.data.foreign import ForeignLoader
from tasuki.data.loader import Loader, MicroBatch
from tasuki.errors import EXIT_RESUME_ME, NotFinite, RunError, StoreError
from tasuki.estimation.intervals import next_multiple, period_in_steps
from tasuki.failpoints import failpoint
from tasuki.loop.agreement import Agreement, Decision
from tasuki.loop.room import when_there_is_room
from tasuki.loop.saver import Saver
from tasuki.loop.saving import NAN_HINT, Saving, finishing_saves
from tasuki.loop.spoken import Spoken
from tasuki.loop.starting import make_agreement, make_saver
from tasuki.loop.watch import leave
from tasuki.memory.tuned import tune_once
from tasuki.runs.metrics import MetricLog
from tasuki.runs.values import Cause, Ending
from tasuki.train.advice import memory_advice
from tasuki.train.back import roll_back
from tasuki.train.data import make_loader
from tasuki.train.engine import StepEngine
from tasuki.train.finish import finish_stage
from tasuki.train.fitting import Fitting
from tasuki.train.forecast import Forecasts
from tasuki.train.memory import FirstSteps
from tasuki.train.onlookers import Onlooker
from tasuki.train.pace import Pace, first_settings
from tasuki.train.prepare import Setup, build_engine, prepare
from tasuki.train.remember import Ran
from tasuki.train.rows import named, numbers
from tasuki.train.snapshot import Progress, StageContents
from tasuki.train.start import Begin, begin_or_resume
from tasuki.train.task import Task
from tasuki.train.throughput import MemoryGauge, read_tokens_per_sample, speeds
from tasuki.train.unused import noting_unused
from tasuki.train.validation import Validation

if TYPE_CHECKING:
    from tasuki.train.profile import Profile

_TELL_OFTEN_S = 1.0
_TELL_SELDOM_S = 10.0
_OFTEN_FOR_S = 60.0
_MOST_SKIPPED = 10
"""Steps without a finite gradient, if they are also half of all: then the run is broken."""


def run_training(task: Task) -> None:
    """Returns when the stage is done; leaves the process at a handover."""
    with task.stopwatch.part("start"):
        tune_once(task)  # before anything is on the device
        setup = prepare(task)
    failpoint("start.prepared")
    saver = make_saver(task)
    with memory_advice(task, setup) as place, noting_unused(task), finishing_saves(task, saver):
        engine = build_engine(task, setup)
        fitting = Fitting(task, setup, place)
        begin = begin_or_resume(task, setup, engine, saver, fitting)
        place.begin(begin.progress)
        fitting.watch(engine, earlier_peak=begin.peak_bytes)
        training = Training(task, setup, engine, saver, begin, fitting)
        while not training.run_or_roll_back():
            begin = roll_back(task, setup, engine, saver, training)
            until, rows = training.progress.step, training.metrics
            training = Training(
                task, setup, engine, saver, begin, fitting, suspect_until=until, metrics=rows
            )
        training.finish()


class Training:
    """The loop and what happens at its step boundaries."""

    def __init__(
        self,
        task: Task,
        setup: Setup,
        engine: StepEngine,
        saver: Saver,
        begin: Begin,
        fitting: Fitting,
        *,
        suspect_until: int = 0,
        metrics: MetricLog | None = None,
    ) -> None:
        self.task, self.setup, self.engine = task, setup, engine
        stage, order = task.stage, setup.order
        self.begin = begin
        self._fitting = fitting
        self.progress: Progress = begin.progress
        self._first_step = begin.progress.step
        self._schedule = setup.schedule
        self._own_schedule: Any = setup.tracked.schedule
        """Of the recipe."""
        self._suspect_until = setup.total_steps if stage.on_nan == "skip" else suspect_until
        self.metrics = metrics or MetricLog(task.run, claim=task.orders.claim, clock=task.clock)
        self.last_row: dict[str, Any] = begin.last_row
        per_epoch = order.steps_per_epoch
        self._log_period = period_in_steps(stage.log_every, per_epoch)
        contents = StageContents(
            setup, engine, begin, rank=task.ranks.rank, last_row=lambda: self.last_row
        )
        contents.peak_bytes = fitting.borders.peak_bytes
        self._used = contents.samples
        self.saving = Saving(
            task,
            saver,
            self.progress,
            contents,
            metrics=self.metrics,
            steps_per_epoch=per_epoch,
            preemptions=begin.preemptions,
            start_cost=begin.start_cost,
        )
        self._validation = Validation(
            task,
            setup,
            self.saving,
            self.progress,
            add_row=lambda found: self.metrics.add(self._row("val") | named(found)),
            round_name=str(self._suspect_until),
        )
        now = task.clock.monotonic()
        self._tokens = read_tokens_per_sample(setup.recipe)
        self._memory = MemoryGauge(task.device)
        self._validation.apart = partial(fitting.borders.apart, self._memory.keep)
        self._profile = self._open_profile() if task.is_profiled and task.is_first else None
        self._onlookers = self._find_onlookers(saver, is_again=metrics is not None)
        self.saver = saver
        self._waited_s = 0.0
        """For data, up to the last step."""
        self._began_at = now
        self._born_at = now - task.stopwatch.lived_s
        self._tell_at = now
        self._logged_at, self._logged_samples = now, begin.progress.samples
        self._forecasts = Forecasts(task, setup, first_step=self._first_step, began_at=now)
        self._spoken = Spoken(task.say, total_steps=setup.total_steps, now=now)

    def _find_onlookers(self, saver: Saver, *, is_again: bool) -> list[Onlooker]:
        task, setup, step = self.task, self.setup, self.progress.step
        found: list[Onlooker] = [self._profile] if self._profile is not None else []
        if task.is_first and not is_again:  # memory is as it was before a roll-back
            found.append(FirstSteps(task, setup, saver, steps_left=setup.total_steps - step))
        return found

    def run_or_roll_back(self) -> bool:
        """False: something was not finite, and the stage is to go back (`on_nan: roll_back`)."""
        try:
            self.run()
        except NotFinite:
            is_new = self.progress.step > self._suspect_until
            if self.task.stage.on_nan != "roll_back" or not is_new:
                raise
            self.saving.abandon()
            if self._profile is not None:
                self._profile.leave()
            self._loader.stop()
            self._agreement.close()
            self.task.watch.end_handover()
            return False
        return True

    # -- the loop ---------------------------------------------------------------------------

    def run(self) -> None:
        loader = self._loader = self._make_loader()
        agreement = self._agreement = self._make_agreement()
        if self.task.is_first:
            self.metrics.resume(stage=self.task.stage.name, step=self.progress.step)
        self._validation.make_up()
        self.task.watch.before_leaving = loader.stop
        self.task.watch.knows_every_bucket = loader.has_seen_every_bucket
        self.task.watch.hold_on()
        self._set_boundary()
        steps = loader.steps()
        if self._profile is not None:
            steps = self._profile.waits(steps)
        foreign = loader if isinstance(loader, ForeignLoader) else None
        for batches, num_samples in steps:
            while (decision := agreement.begin_step(self.progress.step)) is not Decision.GO:
                if decision is Decision.STOP:
                    self._hand_over(loader)
                self.saving.save()
            began = self.task.clock.monotonic()
            now = self._step(batches, num_samples, began)
            if now is None:
                continue  # it ran out of memory: the same step comes again
            if foreign is not None:
                self.progress.loader = foreign.state()  # now: the next step is not fetched yet
            if self.saver.news is not None:
                self.saving.hear()
            if self.progress.step >= self._boundary or now >= self._tell_at:
                self._at_boundary(now, agreement)
            self.saving.hold_if_due(now - began)
        loader.stop()
        self.task.watch.begin_handover()
        if not self.begin.is_end:
            self.saving.commit_end()

    def _step(self, batches: Iterator[MicroBatch], num_samples: int, began: float) -> float | None:
        """One step and its times; when it ended. None: it was undone. Nothing here reads a tensor,
        unless steps are checked. In few calls, as all that every step does: see engine.py."""
        failpoint("step.begin")
        watch, progress, waited_s = self.task.watch, self.progress, self._loader.wait_s
        watch.step_began_at = began
        if self._schedule is not None:
            self._schedule.set_for(progress.step)
        batches = self._noted(batches)
        for onlooker in self._onlookers:
            batches = onlooker.begin_step(batches)
        is_checked = progress.step < self._suspect_until
        if self._fitting.has_to_prove:
            self.engine.is_trying = self._fitting.is_unproven(progress.step, self._loader.bucket)
        try:
            is_counted = self.engine.step(batches, num_samples, is_checked=is_checked)
        except Exception as error:
            self._fitting.shrink(progress, error)
            is_counted = None
        if is_counted is None:  # out here, where nothing holds what the failed passes made
            return self._begin_again()
        if not is_counted:
            self._skip()
        if self._own_schedule is not None:
            self._own_schedule.step()
        progress.step += 1
        progress.samples += num_samples
        now = self.task.clock.monotonic()
        parts, wait_s = self.task.stopwatch.parts, self._loader.wait_s
        parts["data_wait"] += wait_s - self._waited_s
        parts["step"] += now - began - (wait_s - waited_s)
        self._waited_s = wait_s
        watch.step_s.append(now - began)
        self._pace.count_step()
        if self._onlookers:
            self._onlookers = [one for one in self._onlookers if one.end_step()]
        failpoint("step.done")
        return now

    def _begin_again(self) -> float | None:
        """The step was undone: it comes again, in smaller micro-batches of the same samples."""
        self._used.take_back(self.progress.step)
        for onlooker in self._onlookers:
            onlooker.undo_step()
        self._fitting.rewind(self._loader, self.progress.step)
        return None

    def _noted(self, batches: Iterator[MicroBatch]) -> Iterator[MicroBatch]:
        """The same micro-batches; their samples are recorded for `tasuki verify samples`."""
        for batch in batches:
            if batch.indices:
                self._used.add(self.progress.step, batch.indices)
            yield batch

    def _skip(self) -> None:
        """A step whose gradient was not finite is left out; too many of them are no accident."""
        self.progress.skipped += 1
        step = self.progress.step
        self.task.say(f"WARNING: step {step} is not finite: it is left out")
        self.task.event("skipped", stage=self.task.stage.name, step=step)
        if self.progress.skipped >= _MOST_SKIPPED and self.progress.skipped * 2 > step:
            raise NotFinite(
                f"{self.progress.skipped} of {step + 1} steps had a gradient or loss that is not "
                "finite",
                hint="this is no accident: look at the data, or lower `lr`",
            )

    def _set_boundary(self) -> None:
        """The next step count at which something is due; until then a step costs nothing more."""
        step = self.progress.step
        periods = [self._log_period, self._validation.period, self.saving.rhythm.period]
        if self._fitting.borders.period is not None:
            periods.append(self._fitting.borders.period)
        due = [next_multiple(step, period) for period in periods]
        if self.task.is_first:
            due.append(self._forecasts.due)
        self._boundary = min([*due, self.setup.total_steps])

    def _at_boundary(self, now: float, agreement: Agreement) -> None:
        step = self.progress.step
        if self._fitting.is_border(step) and step < self.setup.total_steps:
            self._cross_border(step)
        if step % self._log_period == 0 or step == self.setup.total_steps:
            self._log(now)
        self._validation.run_if_due(step)
        if now >= self._tell_at:
            self._tell(now)
            self._pace.look()
        if step == self.setup.total_steps:
            return  # the end saves
        if step % self.saving.rhythm.period == 0:
            self.saving.save()
        elif self.task.is_first:
            self.saving.ask_if_due(agreement, now)
        if self.task.is_first and step >= self._forecasts.due:
            self._forecasts.look(step)
        self._set_boundary()

    def _cross_border(self, step: int) -> None:
        """Before anything of this step is saved: who comes by again finds the decision."""
        self._memory.keep()
        if self._fitting.cross(step):
            self._fitting.rewind(self._loader, step)

    # -- what is due at a boundary ------------------------------------------------------------

    def _log(self, now: float) -> None:
        total, weight = self.engine.read_losses()
        failpoint("loop.log")
        self._refuse_nan(total)
        scaled = self.engine.scaling.facts() if self.engine.scaling is not None else {}
        if not self.task.is_first or not weight:  # no step counted: there is no mean to tell
            return
        loss = total / weight
        rate = (self.progress.samples - self._logged_samples) / max(1e-9, now - self._logged_at)
        self._logged_at, self._logged_samples = now, self.progress.samples
        since = self.progress.samples - int(self.last_row.get("samples", 0))
        timing = speeds(self._tokens, samples_per_sec=rate, weight=weight, samples=since)
        row = self._row("train") | {"loss": loss, "lr": self._lr()}
        row |= numbers(self.engine.scalars)
        row |= scaled
        self.last_row = row
        timing["memory_allocated_gb"] = self._memory.read_gb(now)
        self.metrics.add(row | timing)
        self._spoken.tell(row, {"loss": loss}, now=now)

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
            self.saving.settle()
            where = f"stage `{self.task.stage.name}` at or before step {self.progress.step}"
            raise NotFinite(
                f"the loss or a weight became {total} in {where}; the last good checkpoint is "
                f"{self.progress.checkpoint}",
                hint=NAN_HINT,
            )

    def _tell(self, now: float) -> None:
        """A sign of life, for the supervisor, `status` and the ledger."""
        often = now - self._began_at < _OFTEN_FOR_S
        self._tell_at = now + (_TELL_OFTEN_S if often else _TELL_SELDOM_S)
        step, total = self.progress.step, self.setup.total_steps
        self.task.watch.tell_step(step, total, samples=self.progress.samples)
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

    # -- the end ------------------------------------------------------------------------------

    def _hand_over(self, loader: Loader | ForeignLoader) -> None:
        """Commit the last finished step and leave. Does not return."""
        self.task.watch.begin_handover()
        loader.stop()  # first: a dying loader worker must not disturb the save
        with self.task.stopwatch.part("handover"):
            self._save_last()
        if self._profile is not None:
            self._profile.finish(self.progress, self.last_row)
        self.task.say(
            f"Handing over at step {self.progress.step} of {self.setup.total_steps} of stage "
            f"{self.task.stage.name} ({self.task.watch.notice})"
        )
        self._event_progress()
        self.task.event("handed-over", step=self.progress.step, cause=self.task.watch.notice)
        self.task.ranks.say_goodbye()
        leave(self.task.watch, ending=Ending.HANDED_OVER, status=EXIT_RESUME_ME)

    def _save_last(self) -> None:
        """A disk that is full now may have room for the next attempt: a failure, no reason to hold
        the run."""
        try:
            self.saving.commit()
        except StoreError as error:
            raise RunError(
                f"step {self.progress.step} could not be saved before the end of this attempt: "
                f"{error}",
                hint=error.hint,
            ) from error

    def finish(self) -> None:
        """All steps are done: the last checkpoint, then the weights, then the stage's marker."""
        self.task.watch.enter("finish")
        if self._profile is not None:
            self._profile.finish(self.progress, self.last_row)
        if self.task.is_first:
            ran = Ran(
                start_s=self._began_at - self._born_at,
                first_step=self._first_step,
                split=self._fitting.split,
                files=self.begin.data.get("files"),
            )
            when_there_is_room(
                lambda: finish_stage(
                    self.task,
                    self.setup,
                    self.progress,
                    self.last_row,
                    ran,
                    exchange_s=self.engine.exchange_s,
                ),
                say=self.task.say,
                clock=self.task.clock,
                should_stop=lambda: self.task.watch.notice is not Cause.NONE,
            )
        self._event_progress()

    def _make_loader(self) -> Loader | ForeignLoader:
        loader = make_loader(
            replace(self.setup.data, split=self._fitting.split),
            first_step=self.progress.step,
            total_steps=self.setup.total_steps,
            settings=first_settings(self.task, self.setup.data.fetcher),
            state=self.progress.loader,
            say=self.task.say,
        )
        self._pace = Pace(self.task, loader)
        return loader

    def _open_profile(self) -> Profile | None:
        from tasuki.train.profile import Profile  # not at every start

        step = self.progress.step
        if step >= self.setup.total_steps:
            return None
        return Profile(
            self.task,
            self.setup,
            self.engine,
            step=step,
            loading=lambda: self._pace.loading(),  # noqa: PLW0108  (there is no pace yet)
            last_loss=lambda: self.last_row.get("loss"),
        )

    def _make_agreement(self) -> Agreement:
        return make_agreement(
            self.task,
            name=f"{self.task.stage.name}/{self._suspect_until}",
            steps_done=self.progress.step,
        )
