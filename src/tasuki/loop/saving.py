"""When a stage is saved, and what follows from it. Asked by the loop at its step boundaries.

The copy happens at a boundary, the commit beside the steps that follow (loop/saver.py). A save
that fails for want of room, or by an error of the disk, does not end the training: the last
checkpoint is still there, and the next is tried when there is room again.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any, Protocol

from tasuki.checkpoint.commit import Checkpoint
from tasuki.checkpoint.frozen import sweep_frozen
from tasuki.checkpoint.manifest import Position
from tasuki.checkpoint.retention import prune
from tasuki.clock import utc
from tasuki.data.used import Used
from tasuki.errors import EXIT_RESUME_ME, NotFinite, StoreError
from tasuki.estimation.intervals import Interval, SaveCost, choose_interval
from tasuki.failpoints import failpoint
from tasuki.loop.agreement import Agreement
from tasuki.loop.best import sweep_best, sweep_done_stages
from tasuki.loop.limits import time_for_saving_s
from tasuki.loop.progress import Progress
from tasuki.loop.rhythm import SaveRhythm
from tasuki.loop.room import when_there_is_room
from tasuki.loop.saver import Saved, Saver
from tasuki.loop.state import State
from tasuki.loop.watch import leave
from tasuki.loop.worker import Worker
from tasuki.runs.atomic import FORMAT, free_bytes, write_json
from tasuki.runs.metrics import MetricLog
from tasuki.runs.values import Cause, Ending
from tasuki.runs.view import read_losses

_FLIGHT_S = 300.0
_FLIGHT_WITH_OTHERS_S = 3.0
"""How long a rank that fails waits for its save; others may be gone, and then it never ends."""
_RETRY_S = 5.0
_SETTLE_S = 60.0
_RETRY_AT_MOST_S = 60.0
_NEWS_WORTH = 1.5
"""A new interval is told when it differs from the last by this factor …"""
_LINE_WORTH = 4.0
"""… and a person reads of it in the log when it differs by this one from what was said there."""
_EARLIER = 0.7
"""Other ranks begin to hold states at this part of what makes rank 0 begin."""
_LONGER = 1.5
"""A validation may take so much longer than the longest one so far."""
_SHORT_STEP_S = 0.02
"""No notice that leaves time for a save is outlasted by such a step."""
_HOLD_STALL = 0.02
"""Of the time at the most is spent copying states that are only held."""


NAN_HINT = (
    "look at the data (`tasuki data check FILE` finds NaN); or lower `lr` in the spec and go on "
    "with `tasuki run --accept-change lr`; `on_nan: skip` or `roll_back` (--accept-change on_nan) "
    "leaves such steps out"
)


SCRIPT_NAN_HINT = (
    "look at the data (`tasuki data check FILE` finds NaN), or lower the learning rate in the "
    "script; started again it goes on from that checkpoint, and TASUKI_NAME=other before the same "
    "command begins another run"
)
"""Of a loop that is not ours: nothing in a spec changes its steps."""


@contextlib.contextmanager
def finishing_saves(worker: Worker, saver: Saver) -> Iterator[None]:
    """An error does not throw away a save that is in flight."""
    try:
        yield
    except BaseException:
        finish_save(worker, saver)
        raise


def finish_save(worker: Worker, saver: Saver) -> None:
    """Wait for the one that is in flight, as long as there is time for it."""
    left = worker.watch.notice_remaining_s()
    longest = _FLIGHT_S if worker.ranks.world == 1 else _FLIGHT_WITH_OTHERS_S
    saver.wait_for(longest if left is None else min(longest, left - 1.0))


class Contents(Protocol):
    """What the checkpoints of a stage hold: asked on every rank, at step boundaries."""

    def position(self, *, is_end: bool) -> Position: ...
    def state(self) -> State: ...
    def facts(self) -> dict[str, Any]:
        """Beside the state, in the manifest: `total_steps`, `best`, `data` …"""
        ...

    def used(self) -> Used | None:
        """Which samples this rank has used; None: nobody knows."""
        ...

    def must_be_finite(self, name: str) -> bool:
        """Of tensors in the state, by name."""
        ...

    def loss(self) -> Any:
        """The last one that was logged."""
        ...


class Saving:
    """The saves of one stage in one attempt."""

    def __init__(
        self,
        worker: Worker,
        saver: Saver,
        progress: Progress,
        contents: Contents,
        *,
        metrics: MetricLog,
        steps_per_epoch: int,
        preemptions: int,
        start_cost: SaveCost | None,
    ) -> None:
        self._worker, self._saver = worker, saver
        self._contents = contents
        self._progress = progress
        self._preemptions = preemptions
        now = worker.clock.monotonic()
        every = worker.stage.save.every
        self.rhythm = SaveRhythm(every, steps_per_epoch=steps_per_epoch, now=now)
        self._retry_at = math.inf
        self._retry_s = _RETRY_S
        self._need = self._num_missed = 0
        self._interval: Interval | None = None
        self._said_s: float | None = None
        self.cost: SaveCost | None = None
        """Of the last save."""
        self._hold_period = 0
        """In steps; 0: no states are held."""
        self._is_validating = False
        self._has_published = False
        saver.before = metrics.sync  # a checkpoint counts on the lines of its steps
        saver.after = self._after
        saver.is_hurried = lambda: worker.watch.notice is not Cause.NONE
        saver.must_be_finite = contents.must_be_finite
        self._not_finite: NotFinite | None = None
        """Found by a save, and not acted upon yet."""
        if start_cost is not None:
            self._measured(start_cost)

    # -- at a step boundary ---------------------------------------------------------------------

    def save(self, *, is_end: bool = False) -> None:
        """Copy the state of this step; the commit follows."""
        progress = self._progress
        if progress.saved_step == progress.step and not is_end:
            return
        self._worker.watch.enter("save")
        with self._worker.stopwatch.part("save"):
            self._hear(self._saver.wait())
            self._act_on_not_finite()
            self._saver.begin(*self._state(is_end=is_end), **self._facts())
        self._worker.watch.enter("train")
        progress.saved_step = progress.step
        self.rhythm.begun(self._worker.clock.monotonic())

    def commit(self, *, is_end: bool = False) -> None:
        """Save and wait until it is durable. Raises if that cannot be."""
        self.save(is_end=is_end)
        self._worker.watch.enter("save")
        with self._worker.stopwatch.part("save"):
            saved = self._saver.wait()
        self._hear(saved, is_needed=True)
        self._act_on_not_finite()

    def commit_end(self) -> None:
        """The stage's last checkpoint: nothing is left to do but wait, if the disk is full."""

        def act() -> None:
            self.commit(is_end=True)

        watch = self._worker.watch
        if self._worker.ranks.world > 1:
            act()
            return
        when_there_is_room(
            act,
            say=self._worker.say,
            clock=self._worker.clock,
            should_stop=lambda: watch.notice is not Cause.NONE,
        )

    def settle(self) -> None:
        """Before an error is told: what is in flight may still be the last good checkpoint."""
        self._saver.wait_for(_SETTLE_S)
        if self._saver.committed is not None:
            self._progress.checkpoint = self._saver.committed.name

    def abandon(self) -> None:
        """Before a roll-back: wait for what is in flight, whatever became of it."""
        saved = self._saver.wait()
        self._saver.drop_held()
        if saved is not None and saved.name is not None:
            self._progress.checkpoint = saved.name

    def hear(self) -> None:
        """How the last save ended."""
        self._hear(self._saver.take_news())

    def ask_if_due(self, agreement: Agreement, now: float) -> None:
        """By time: rank 0 asks, and the ranks agree on a step."""
        if self._saver.is_busy:
            return
        if self.rhythm.is_due_by_time(now):
            agreement.want_save()
        elif now >= self._retry_at and self._has_room():
            self._retry_at = now + self._retry_s
            agreement.want_save()

    def hold_if_due(self, step_s: float) -> None:
        """Where a step outlasts the notice: keep a copy that the watch can commit."""
        if not self._hold_period:
            if step_s < _SHORT_STEP_S:
                return
            self._begin_holding()
        step = self._progress.step
        is_new = step != self._progress.saved_step
        if self._hold_period and step % self._hold_period == 0 and is_new:
            with self._worker.stopwatch.part("save"):
                self._saver.hold(*self._state(is_end=False), **self._facts())

    def _begin_holding(self) -> None:
        """Once the last step and a save would not fit the notice, though a save alone would."""
        watch, cost = self._worker.watch, self.cost
        notice_s = watch.grace_s if watch.grace_s is not None else self._worker.grace_s
        if notice_s is None or cost is None:
            return
        step_s = watch.step_s[-1]
        # Whenever rank 0 holds, all must; theirs are small.
        margin = 1.0 if self._worker.is_first else _EARLIER
        if step_s + cost.total_s < margin * notice_s:
            return
        if cost.total_s >= notice_s:
            return
        self._hold_period = 1
        if self._worker.ranks.world == 1:  # several must hold the same steps: all of them
            self._hold_period = max(1, math.ceil(cost.blocked_s / (_HOLD_STALL * step_s)))
        self._set_publish(is_wanted=True)
        self._worker.say(
            f"A step of {step_s:.1f} s and a save of {cost.total_s:.1f} s do not fit a notice of "
            f"{notice_s:.0f} s: a copy of the state is kept in host memory, and saved instead of "
            "the running step when the end comes"
        )
        self._worker.event("holding", step_s=step_s, save_s=cost.total_s, notice_s=notice_s)

    def may_outlast(self, seconds: float | None) -> bool:
        """Would what takes so long, or nobody knows how long, be cut off before a save is done?"""
        watch = self._worker.watch
        grace_s = watch.grace_s if watch.grace_s is not None else self._worker.grace_s
        ends = (grace_s, watch.remaining_s(), watch.notice_remaining_s())
        left = min((end for end in ends if end is not None), default=None)
        if left is None or seconds is None:
            return left is not None
        save_s = self.cost.total_s if self.cost is not None else 0.0
        return _LONGER * seconds + time_for_saving_s(save_s) >= left

    def hold_before_validation(self) -> None:
        """All ranks or none. What is held says that the validation is still to be done."""
        with self._worker.stopwatch.part("save"):
            self._saver.hold(*self._state(is_end=False), **self._facts())
        self._is_validating = True
        self._set_publish(is_wanted=True)

    def drop_after_validation(self) -> None:
        """What was held before it is out of date: the result belongs to this step."""
        self._set_publish(is_wanted=bool(self._hold_period))
        self._saver.drop_held(self._progress.step)
        self._is_validating = False

    def _set_publish(self, *, is_wanted: bool) -> None:
        """Once in an attempt: the ranks' words about it are not renewed."""
        is_possible = is_wanted and not self._has_published
        self._worker.watch.publish = self.publish if is_possible else None

    def publish(self, remaining_s: float | None) -> None:
        """In the watch's thread, when the running step will not end in time: commit the state that
        was held last, and leave. Comes back where that cannot be."""
        worker, held = self._worker, self._saver.held_step
        self._has_published = True
        saved = self._saver.publish_held(within_s=max(0.0, (remaining_s or 0.0) / 2))
        if saved is None or saved.name is None:
            return
        if held is None and saved.position.stage_step < self._progress.step:
            return  # nothing newer was held: the boundary may still come
        words = f"Handing over at step {saved.position.stage_step} of stage {saved.position.stage}"
        what = "validation" if self._is_validating else "step"
        worker.say(
            f"{words} ({worker.watch.notice}): the running {what} would not have ended in time"
        )
        worker.event("handed-over", checkpoint=saved.name, held_step=held)
        worker.ranks.say_goodbye()
        leave(worker.watch, ending=Ending.HANDED_OVER, status=EXIT_RESUME_ME)

    # -- what a checkpoint holds ----------------------------------------------------------------

    def _state(self, *, is_end: bool) -> tuple[Position, State]:
        return self._contents.position(is_end=is_end), self._contents.state()

    def _facts(self) -> dict[str, Any]:
        return {"facts": self._contents.facts(), "used": self._contents.used()}

    # -- how it ended ---------------------------------------------------------------------------

    def _hear(self, saved: Saved | None, *, is_needed: bool = False) -> None:
        if saved is None:
            return
        if saved.error is not None:
            self._progress.saved_step = -1
            if isinstance(saved.error, NotFinite):
                self._not_finite = self._explained(saved.error)
                if self._worker.ranks.world == 1:
                    self._act_on_not_finite()
                return
            if is_needed or not isinstance(saved.error, StoreError):
                raise saved.error
            self._miss(saved.error, size=saved.size)
            return
        self._progress.checkpoint = saved.name
        if self._num_missed:
            self._worker.say(f"Saved again: {saved.name}; {self._num_missed} saves had failed")
            self._num_missed = 0
        self._retry_at, self._retry_s = math.inf, _RETRY_S
        self._need = saved.size
        self._worker.watch.save_s.append(saved.total_s)
        self._measured(SaveCost(blocked_s=saved.blocked_s, total_s=saved.total_s))

    def _act_on_not_finite(self) -> None:
        """With several ranks only where all have heard of it at the same step: at the next save."""
        if self._not_finite is not None:
            raise self._not_finite

    def _explained(self, error: NotFinite) -> NotFinite:
        return NotFinite(
            f"{error.message}; the last good checkpoint is {self._progress.checkpoint}",
            hint=NAN_HINT if self._worker.stage.command is None else SCRIPT_NAN_HINT,
        )

    def _miss(self, error: StoreError, *, size: int | None = None) -> None:
        """Training goes on. The last checkpoint is untouched."""
        now = self._worker.clock.monotonic()
        self._num_missed += 1
        self._retry_at, self._retry_s = (
            now + self._retry_s,
            min(self._retry_s * 2, _RETRY_AT_MOST_S),
        )
        self._need = size or self._need
        words = f"step {self._progress.step} is not saved: {error}"
        if self._num_missed == 1:
            self._worker.say(
                f"WARNING: {words}; training goes on, the last checkpoint is "
                f"{self._progress.checkpoint}, and it is tried again"
            )
        self._worker.event("save-failed", step=self._progress.step, reason=str(error))

    def _has_room(self) -> bool:
        try:
            return free_bytes(self._worker.run.checkpoints) > self._need
        except StoreError:
            return False

    def _after(self, checkpoint: Checkpoint, saved: Saved) -> None:
        """In rank 0's saving thread, when a checkpoint is durable."""
        worker = self._worker
        worker.event(
            "committed",
            checkpoint=checkpoint.name,
            stage=checkpoint.manifest.position.stage,
            step=checkpoint.manifest.position.stage_step,
            used=checkpoint.manifest.facts.get("used"),
            blocked_s=round(saved.blocked_s, 4),
            total_s=round(saved.total_s, 4),
            bytes=saved.size,
        )
        worker.watch.tell("saved", checkpoint=checkpoint.name, is_start=False)
        try:
            self._write_state(checkpoint)
            self._sweep(checkpoint)
        except StoreError as error:  # the checkpoint is there: what is left over is swept later
            worker.say(f"WARNING: after {checkpoint.name}: {error}")

    def _sweep(self, checkpoint: Checkpoint) -> None:
        run, claim = self._worker.run, self._worker.claim
        pruned = prune(run, claim=claim, keep=self._worker.stage.save.keep)
        failpoint("save.pruned")
        if pruned:
            self._worker.event("pruned", checkpoints=pruned)
            frozen = self._saver.frozen
            sweep_frozen(run, claim=claim, keep=frozen.record if frozen else None)
            sweep_done_stages(run, but=self._worker.stage.name)
        at = checkpoint.manifest.position
        sweep_best(run, at.stage, claim=claim, keep=self._progress.best, until=at.stage_step)

    def _write_state(self, checkpoint: Checkpoint) -> None:
        at, facts = checkpoint.manifest.position, checkpoint.manifest.facts
        write_json(
            self._worker.run.training_state,
            {
                "format": FORMAT,
                "experiment": self._worker.run.name,
                "state": "running",
                "stage": at.stage,
                "epoch": at.epoch,
                "step": at.stage_step,
                "total_steps": facts["total_steps"],
                "samples": at.samples,
                "attempt": self._worker.claim,
                "preemptions": self._preemptions,
                "best": facts["best"],
                "last_checkpoint": checkpoint.name,
                "loss": self._contents.loss(),
                "updated_at": utc(self._worker.clock.wall()),
            },
        )

    # -- how often ------------------------------------------------------------------------------

    def _measured(self, cost: SaveCost) -> None:
        """A save was measured: choose the interval."""
        self.cost = cost
        if not self.rhythm.is_auto or not self._worker.is_first:
            return
        try:
            losses = read_losses(self._worker.run)
        except StoreError:  # how often it saves is not worth an attempt
            return
        step_s = self._worker.watch.p99_step_s
        chosen = choose_interval(cost, losses, step_s=step_s, notice_s=self._worker.grace_s)
        self.rhythm.interval_s = chosen.seconds
        before = self._interval.seconds if self._interval else None
        if before is None or not 1 / _NEWS_WORTH < chosen.seconds / before < _NEWS_WORTH:
            self._interval = chosen
            if not 1 / _LINE_WORTH < chosen.seconds / (self._said_s or math.inf) < _LINE_WORTH:
                self._said_s = chosen.seconds
                self._worker.say(f"Saving every {chosen.seconds:.0f} s: {chosen.reason}")
            self._worker.event("interval", seconds=round(chosen.seconds, 1), reason=chosen.reason)
