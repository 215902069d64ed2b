"""A loop that somebody else wrote, made resumable: what adapters are built on.

    loop = open_loop(…)                     # open.py: which run, which rank, which attempt
    state = loop.find()                     # of the checkpoint to go on from; None: a first start
    loop.begin(holds, course)               # every start is the restore of a checkpoint
    while loop.progress.step < course.total_steps:
        loop.boundary()                     # saves; hands over where the end has come
        …                                   # one step
        loop.end_step(samples=8)
    loop.end()                              # the last checkpoint
    loop.complete()                         # weights, metrics, the marker

`boundary` must stand where nothing is half done, and nothing of the next step is fetched yet. The
loop decides nothing about what is learnt; Run (run.py) is the face for people.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from tasuki.checkpoint.manifest import Manifest
from tasuki.checkpoint.parts import read_part
from tasuki.checkpoint.verify import read_manifest
from tasuki.data.fetch import seed_everything
from tasuki.data.order import sample_seed
from tasuki.data.used import Used, UsedSamples
from tasuki.errors import EXIT_RESUME_ME, RunError, StoreError, TasukiError, place_of
from tasuki.estimation.intervals import SaveCost, next_multiple, period_in_steps
from tasuki.failpoints import failpoint
from tasuki.integrations.alone import close_alone
from tasuki.integrations.contents import LoopContents
from tasuki.integrations.course import Course, HandedOver, Holds, refuse_changed
from tasuki.integrations.finish import finish_stage
from tasuki.integrations.journal import Journal
from tasuki.integrations.origin import Origin, find_origin
from tasuki.integrations.replay import say_replaying
from tasuki.integrations.rows import Rows
from tasuki.integrations.several import note_completed
from tasuki.loop.agreement import Agreement, Decision
from tasuki.loop.best import Best
from tasuki.loop.ending import ending_of, explain_error
from tasuki.loop.exact import describe, freeze
from tasuki.loop.latest import Loaded
from tasuki.loop.progress import Progress
from tasuki.loop.saver import Saver
from tasuki.loop.saving import Saving, finish_save
from tasuki.loop.starting import (
    commit_first,
    cost_before,
    load_state,
    make_agreement,
    make_saver,
    say_differences,
    say_resuming,
)
from tasuki.loop.state import State, restore_random
from tasuki.loop.watch import leave
from tasuki.loop.worker import Worker
from tasuki.runs.control import Word, last_said
from tasuki.runs.finish import finish_run
from tasuki.runs.runs import CommandFolder
from tasuki.runs.values import Cause, Ending, PhaseEnded
from tasuki.runs.view import count_preemptions

__all__ = ["Course", "HandedOver", "Holds", "Loop"]

_TELL_OFTEN_S = 1.0
_TELL_SELDOM_S = 10.0
_OFTEN_FOR_S = 60.0
_LOOK_EVERY_S = 0.1


class Loop:
    """One stage of one attempt on one rank, stepped through by somebody else."""

    def __init__(
        self, worker: Worker, *, is_alone: bool, is_kernel: bool, files: CommandFolder | None
    ) -> None:
        self.worker = worker
        self._is_alone, self._is_kernel, self._files = is_alone, is_kernel, files
        self.rows = Rows()
        self.journal = Journal(worker, self.rows)
        self.progress = Progress()
        self.contents = LoopContents(self)
        """What checkpoints hold."""
        self.stages_before: Sequence[str] = ()
        self.before_leaving: Callable[[], None] = lambda: None
        """Ends what would be in the way, such as loader workers."""
        self.lr: Callable[[], float | None] = lambda: None
        """Written into each line."""
        self.newest_loss: Callable[[], float | None] = lambda: None
        """Of the last step, for a glance where no line has told one: frameworks log seldom."""
        self.is_over = False
        """The attempt has ended; nothing is written any more."""
        self.is_at_end = False
        """All steps are done, and the last checkpoint is durable."""
        self._origin: Origin | None = None
        self._saver: Saver | None = None
        self._agreement: Agreement | None = None
        self.replays = False
        """May the last step be done once more? (replay.py)"""
        self.replayed: str | None = None
        """It is being done so: the checkpoint after it, which stays the last."""
        self.finished: dict[str, Any] | None = None
        """Results that were given before the last checkpoint, which holds them: of a loop that was
        left early."""
        worker.watch.before_leaving = self._on_leaving

    # -- the start ------------------------------------------------------------------------------

    def find(self) -> State | None:
        """The shared state of the checkpoint that this attempt goes on from; None: a first start.
        Looked for once."""
        return self._find().shared()

    def _find(self) -> Origin:
        if self._origin is None:
            with self.worker.stopwatch.part("restore"):
                self.worker.doing("looking for a checkpoint")
                self._origin = find_origin(self.worker, replays=self.replays)
                self.replayed = self._origin.replayed
        return self._origin

    def stands_at(self) -> tuple[Course | None, int, bool]:
        """(the course of the checkpoint that is gone on from, its step, is that the last one)."""
        return self._find().stands_at(self.worker)

    def begin(self, holds: Holds, course: Course) -> None:
        """Commit a first checkpoint, or take the newest; then restore it."""
        worker, origin = self.worker, self._find()
        self.holds, self.course = holds, course
        self._saver = make_saver(worker)
        self.used_samples = UsedSamples()
        with worker.stopwatch.part("restore"):
            if origin.is_resumed:
                name, cost = str(origin.name), cost_before(worker)
            else:
                worker.doing("saving the first checkpoint")
                self._saver.parent = origin.name
                name, cost = commit_first(worker, self._saver, self.contents)
            worker.doing("restoring")
            manifest = self._restore(name, origin.loaded or load_state(worker, name))
        self._origin = replace(origin, name=name, is_resumed=True, loaded=None)
        if origin.is_resumed:
            say_resuming(worker, manifest)
        if self.replayed is not None:
            say_replaying(worker, self.replayed, self._replays_from[1] - self.progress.step)
        at = (name, self.progress.step) if self.replayed is None else self._replays_from
        worker.event("restored", checkpoint=at[0], stage=worker.stage.name, step=at[1])
        self._set_out(cost, is_end=manifest.position.is_end)

    def _restore(self, name: str, loaded: Loaded) -> Manifest:
        worker, course = self.worker, self.course
        manifest = read_manifest(worker.run.checkpoints / name)
        shared, told = loaded.state["shared"], loaded.state["progress"]
        refuse_changed(self.fixed_facts(), told["course"], course, run=worker.run.name)
        self.holds.restore(shared)
        facts = describe(threads=worker.threads, world=worker.ranks.world, device=worker.device)
        if worker.is_first:
            freeze(worker.run, facts)
            say_differences(worker, facts, world=manifest.world)
        self.rows.restore(told["rows"])
        self.finished = told.get("finished")
        best = Best.from_json(told["best"]) if told["best"] else None
        self.progress = Progress(told["step"], told["samples"], best, name, told["step"])
        if worker.is_first and course.knows_samples and manifest.facts.get("used"):
            self.used_samples = UsedSamples(Used.from_json(manifest.facts["used"]))
        self.saver.parent = name
        self._restore_rank(name, manifest, loaded)
        return manifest

    def _restore_rank(self, name: str, manifest: Manifest, loaded: Loaded) -> None:
        worker, rank = self.worker, self.worker.ranks.rank
        if manifest.world != worker.ranks.world:
            # The same samples in the same order, and fresh random streams.
            purpose = f"resume-{self.progress.step}-{worker.ranks.world}"
            seed = sample_seed(worker.stage.seed, f"{worker.stage.name}#{purpose}", 0, rank)
            self.holds.restore_rank(None)
            seed_everything(seed)
            return
        own: Any = loaded.state
        if rank:
            own = read_part(worker.run.checkpoints / name, rank, records=manifest.files)
        self.holds.restore_rank(own["rank"]["own"])
        restore_random(own["rank"]["random"])  # last: nothing draws after it but the steps

    @property
    def _replays_from(self) -> tuple[str, int]:
        """The checkpoint that stays the last, and its step."""
        total = self.course.total_steps
        assert total is not None, "whoever replays knows the last step"
        return str(self.replayed), total

    def fixed_facts(self) -> dict[str, Any]:
        """What must be the same at every start."""
        course = self.course
        counts = {"total_steps": course.total_steps, "steps_per_epoch": course.steps_per_epoch}
        return {**course.facts, **counts}

    def _set_out(self, cost: SaveCost | None, *, is_end: bool) -> None:
        worker, course = self.worker, self.course
        now, self.is_at_end = worker.clock.monotonic(), is_end
        # A step that is only repeated is no progress, and its lines stay as they are.
        self._first_step = self.progress.step if self.replayed is None else self._replays_from[1]
        self.journal.is_muted = self.replayed is not None
        at = {"step": self._first_step, "samples": self.progress.samples}
        self.journal.begin(**at, total_steps=course.total_steps, now=now)
        self.saving = Saving(
            worker,
            self.saver,
            self.progress,
            self.contents,
            metrics=self.journal.metrics,
            steps_per_epoch=course.steps_per_epoch,
            preemptions=count_preemptions(worker.run),
            start_cost=cost,
        )
        self._log_period = period_in_steps(worker.stage.log_every, course.steps_per_epoch)
        self._agreement = make_agreement(
            worker,
            name=worker.stage.name,
            steps_done=self.progress.step,
            looks_every_s=_LOOK_EVERY_S,
        )
        self._began_at = self._step_began = self._tell_at = now
        self._took_s, self._is_save_due = 0.0, False
        self._set_boundary()
        if not self._is_kernel and self.replayed is None:
            worker.watch.hold_on()

    # -- the steps ------------------------------------------------------------------------------

    def boundary(self) -> None:
        """Between two steps, before anything of the next one. Raises HandedOver at the end of an
        attempt (RunError in a kernel, which lives on)."""
        if self.replayed is not None:
            self.begin_step()
            return
        if self._is_save_due:
            self._is_save_due = False
            self.saving.save()
        self.saving.hold_if_due(self._took_s)
        while (decision := self.agreement.begin_step(self.progress.step)) is not Decision.GO:
            if decision is Decision.STOP:
                self.hand_over()
            self.saving.save()
        self.begin_step()

    def begin_step(self) -> None:
        """The next step begins, where nothing may be saved: in the middle of an accumulation."""
        failpoint("step.begin")
        self._step_began = self.worker.watch.step_began_at = self.worker.clock.monotonic()

    def leave_out(self, seconds: float) -> None:
        """Such a time within a step was no work of it: a validation that a framework does there."""
        self._step_began += seconds

    def end_step(self, *, samples: int, indices: Sequence[int] = (), waited_s: float = 0.0) -> None:
        """A step is done: `samples` over all ranks, `indices` on this one, of which the step waited
        so long for its data."""
        watch, progress, now = self.worker.watch, self.progress, self.worker.clock.monotonic()
        failpoint("step.optimizer")
        if indices:
            self.used_samples.add(progress.step, indices)
        progress.step += 1
        progress.samples += samples
        took_s = now - self._step_began
        parts = self.worker.stopwatch.parts
        parts["data_wait"] += waited_s
        parts["step" if self.replayed is None else "recomputed"] += took_s - waited_s
        watch.step_s.append(took_s)
        failpoint("step.done")
        if self.rows.others:
            self.write_others()
        if self.saver.news is not None:
            self.saving.hear()
        if progress.step >= self._boundary or now >= self._tell_at:
            self._at_boundary(now)
        self._took_s = took_s

    def write_lines(self) -> None:
        """What was logged, as lines of the step that is done."""
        now = self.worker.clock.monotonic()
        self.journal.write(self._at(), lr=self.lr(), now=now)
        self.journal.flush(now)

    def write_others(self) -> None:
        """The same of splits other than `train` alone, which wait for no `log_every`."""
        self.journal.write_others(self._at())
        self.journal.flush(self.worker.clock.monotonic())

    def save(self) -> None:
        """At the next boundary."""
        if self.replayed is None:
            self.agreement.want_save()

    def _set_boundary(self) -> None:
        """The next step count at which something is due; until then a step costs nothing more."""
        step = self.progress.step
        periods = [self._log_period, self.saving.rhythm.period]
        due = [next_multiple(step, period) for period in periods]
        if self.course.last_boundary is not None and step < self.course.last_boundary:
            due.append(self.course.last_boundary)
        total = self.course.total_steps
        self._boundary = min(due if total is None else [*due, total])

    def _at_boundary(self, now: float) -> None:
        step = self.progress.step
        if step % self._log_period == 0:
            self.journal.write(self._at(), lr=self.lr(), now=now)
        if now >= self._tell_at:
            self._tell(now)
        if self.course.is_before_end(step) and self.replayed is None:
            if step % self.saving.rhythm.period == 0 or step == self.course.last_boundary:
                self._is_save_due = True
            elif self.worker.is_first:
                self.saving.ask_if_due(self.agreement, now)
        self._set_boundary()

    def _tell(self, now: float) -> None:
        """A sign of life, for `status` and the ledger."""
        often = now - self._began_at < _OFTEN_FOR_S
        self._tell_at = now + (_TELL_OFTEN_S if often else _TELL_SELDOM_S)
        if self.replayed is None:
            self._event_progress()

    def _at(self) -> dict[str, Any]:
        """Where a line, or a sign of life, is from."""
        progress = self.progress
        return {
            "stage": self.worker.stage.name,
            "epoch": progress.step // self.course.steps_per_epoch,
            "step": progress.step,
            "samples": progress.samples,
        }

    def _event_progress(self) -> None:
        stopwatch, watch = self.worker.stopwatch, self.worker.watch
        self.worker.event(
            "progress",
            **self._at(),
            total_steps=self.course.total_steps,
            from_step=self._first_step,
            loss=self.contents.loss(),
            step_s=median(watch.step_s) if watch.step_s else None,
            lived_s=round(stopwatch.lived_s, 4),
            parts=stopwatch.rounded(),
        )

    @property
    def saver(self) -> Saver:
        assert self._saver is not None, "not begun"
        return self._saver

    @property
    def agreement(self) -> Agreement:
        assert self._agreement is not None, "not begun"
        return self._agreement

    # -- the end --------------------------------------------------------------------------------

    def end(self) -> None:
        """All steps are done: the last checkpoint is durable when this returns."""
        worker = self.worker
        self.write_lines()
        # Ranks that share no collective may be far apart: who is done still answers the others.
        worker.ranks.await_all("end")
        self.agreement.close()
        worker.watch.begin_handover()
        if self.replayed is not None:
            self._restore(self.replayed, load_state(worker, self.replayed))
            self.replayed, self.journal.is_muted = None, False
        elif not self.is_at_end:
            self.saving.commit_end()
        self.is_at_end = True
        self._event_progress()
        if not self._is_kernel:
            worker.watch.is_interruptible = True  # what follows can be done again

    def hand_over(self) -> None:
        """Commit the last finished step, and let the next attempt go on. Does not return."""
        worker, step = self.worker, self.progress.step
        watch = worker.watch
        watch.begin_handover()
        self.before_leaving()  # first: a dying loader worker must not disturb the save
        with worker.stopwatch.part("handover"):
            try:
                self.saving.commit()
            except StoreError as error:
                raise RunError(
                    f"step {step} could not be saved before the end of this attempt: {error}",
                    hint=error.hint,
                ) from error
        at = f"step {step}{self.course.of_total()} of stage {worker.stage.name}"
        worker.say(f"Handing over at {at} ({watch.notice})")
        self._event_progress()
        worker.event("handed-over", step=step, cause=watch.notice)
        self._close(self._handed_over())
        worker.ranks.say_goodbye()
        if self._is_kernel:
            raise RunError(f"handed over at {at}", hint="run it again: it goes on from there")
        raise HandedOver(EXIT_RESUME_ME)

    def complete(self, metrics: Mapping[str, Any] | None = None) -> None:
        """The stage is done, and without a supervisor the run is."""
        worker = self.worker
        worker.watch.see_through()
        self.write_lines()  # of what came after the steps
        if worker.is_first:
            finish_stage(
                worker,
                self.holds.weights(),
                best=self.progress.best,
                steps=self.progress.step,
                steps_per_epoch=self.course.steps_per_epoch,
                samples=self.progress.samples,
                last={
                    **({} if (loss := self.contents.loss()) is None else {"loss": loss}),
                    **self.rows.last,
                },
                metrics=metrics,
            )
            if self._files is not None:
                self._files.done.touch(mode=0o600)
            if self._is_alone:
                finish_run(worker.run, claim=worker.claim, clock=worker.clock)
                worker.event("complete")
        note_completed(worker.run)
        self._close(PhaseEnded(ending=Ending.DONE), "complete")
        worker.ranks.say_goodbye()

    def fail(self, error: BaseException) -> None:
        """An exception ends the attempt. A save that is in flight is still finished."""
        if self.is_over:
            return
        worker = self.worker
        if self._agreement is not None:  # the steps have begun
            self._agreement.close()
            self.journal.flush(worker.clock.monotonic())
        if self._saver is not None:
            finish_save(worker, self._saver)
        error = explain_error(error, worker.run, worker.claim)
        if isinstance(error, TasukiError):
            words, hint = error.message, error.hint
        else:
            words, hint = f"{type(error).__name__}: {error}"[:2000], ""
        words += place_of(error)
        ending = Ending.FAILED if isinstance(error, KeyboardInterrupt) else ending_of(error)
        cause = Cause.INTERRUPTED if isinstance(error, KeyboardInterrupt) else Cause.NONE
        self._close(PhaseEnded(ending=ending, cause=cause, message=words, hint=hint), "failed")
        if self._agreement is None:  # the others, which ask rank 0's store, are about to fail too
            worker.ranks.say_goodbye()

    def leave(self) -> None:
        """After HandedOver: go, without the interpreter's teardown. Does not return."""
        leave(self.worker.watch, ending=Ending.HANDED_OVER, status=EXIT_RESUME_ME)

    def _handed_over(self) -> PhaseEnded:
        """As `tasuki why` tells it: which signal it was, where nobody knows more about it."""
        cause = self.worker.watch.notice
        said = last_said(self.worker.run) if self._is_alone else None
        if said is not None and said.word is Word.CANCEL:
            cause = Cause.CANCELLED
        by = self.worker.watch.signal_name if cause is Cause.INTERRUPTED else ""
        return PhaseEnded(ending=Ending.HANDED_OVER, cause=cause, message=by)

    def _on_leaving(self) -> None:
        """By whatever thread: the watch leaves before the first step, and after the last."""
        self.before_leaving()
        self._close(self._handed_over())

    def _close(self, end: PhaseEnded, state: str = "handed-over") -> None:
        """Once. Where a supervisor holds the claim, that writes the attempt's end."""
        if self.is_over:
            return
        self.is_over = True
        worker = self.worker
        if self._is_alone and worker.is_first:
            has_saved = self._saver is not None and self._saver.committed is not None
            with contextlib.suppress(StoreError):
                close_alone(worker, end, state, has_saved=has_saved)
        self.journal.metrics.close()
        worker.close_logs()
