"""Carry out a packed job: a lane for each item as long as it runs, on whatever GPUs are free.

What a person says of one run (cancel, and resume) is found in its folder: a signal would reach all.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable

from tasuki.clock import Clock
from tasuki.errors import TasukiError
from tasuki.jobs.items import BLOCKED, Gpus, Item, Items, is_worth_it
from tasuki.jobs.job import JobOrder, LaneOrder
from tasuki.jobs.lane import Lane
from tasuki.runs.back import settle_back
from tasuki.runs.control import Word, last_said
from tasuki.runs.decide import next_action
from tasuki.runs.runs import RunFolder
from tasuki.runs.values import (
    Action,
    Cause,
    Fail,
    Finish,
    HandOver,
    Hold,
    LaneEnd,
    Leave,
    Started,
)
from tasuki.runs.view import live_holder, read_view

LISTEN_EVERY_S = 1.0
_STOPPED = ("cancelled", "held", "failed")

MakeLane = Callable[[LaneOrder, int], Lane]
"""Of these orders, under this number."""


class PackedLanes:
    """The lanes of one start of a packed job."""

    def __init__(self, job: JobOrder, make_lane: MakeLane, clock: Clock) -> None:
        self._job, self._make_lane, self._clock = job, make_lane, clock
        self.items = Items(job)
        self._lanes: dict[int, Lane] = {}
        self._began_at = clock.monotonic()
        self._is_closing = False
        """An item was handed over at the limit: nothing else is begun."""
        self._listened_at = self._began_at
        self._words = {item.order.run.name: _count_words(item.order.run) for item in self.items}
        for item in self.items:
            self._settle_before(item)

    def _settle_before(self, item: Item) -> None:
        """What is done already, or stopped, takes no lane."""
        action = self._look(item, Cause.NONE)
        if action == BLOCKED and item.after:
            return  # perhaps by an item of this job, which a person may let go on
        if isinstance(action, Leave | Hold):
            self.items.end(item.number, action)

    def _look(self, item: Item, cause: Cause) -> Action:
        order = item.order
        try:
            settle_back(order.run)
            view = read_view(
                order.run,
                until=order.until,
                requeue=self._job.requeue,
                trains_only=order.trains_only,
            )
        except TasukiError as error:  # its folder is gone or damaged: the others go on
            return Hold(error.message, error.hint)
        return next_action(view, Started(cause))

    # -- what begins ------------------------------------------------------------------------

    def next_lanes(self, remaining_s: float | None) -> list[Lane]:
        """Lanes to begin now; their GPUs are theirs."""
        if self._is_closing:
            return []
        now = self._now()
        chosen = self.items.to_start(now, may_begin=lambda item: self._may_begin(item, remaining_s))
        return [self._lane_for(item, gpus, now) for item, gpus in chosen]

    def _may_begin(self, item: Item, remaining_s: float | None) -> bool:
        return is_worth_it(item.order, remaining_s=remaining_s, job=self._job)

    def _lane_for(self, item: Item, gpus: Gpus, now: float) -> Lane:
        self.items.begin(item.number, gpus, now)
        lane = self._make_lane(LaneOrder(gpus=gpus, items=(item.order,)), item.number)
        self._lanes[item.number] = lane
        return lane

    def note_ends(self, *, has_notice: bool) -> bool:
        """Give back what ended lanes held; has any ended?"""
        ended = [n for n, lane in self._lanes.items() if lane.end is not None]
        for number in ended:
            end = self._lanes.pop(number).end
            assert end is not None
            self._end(number, end.action, has_notice=has_notice)
        return bool(ended)

    def _end(self, number: int, action: Action, *, has_notice: bool) -> None:
        if isinstance(action, HandOver) and not has_notice:
            if action.is_resumed and action.cause in (Cause.PREEMPTED, Cause.LOST):
                self.items.wait_again(number)  # a signal to one rank alone: the job lives on
                return
            self._is_closing |= action.cause is Cause.LIMIT
        self.items.end(number, action)

    # -- what people say --------------------------------------------------------------------

    def listen(self, now: float) -> list[Lane]:
        """Lanes whose run was cancelled. Takes up again what a person lets go on."""
        if now - self._listened_at < LISTEN_EVERY_S:
            return []
        self._listened_at = now
        heard = {run.name: self._heard(run) for run in {item.order.run for item in self.items}}
        stopped = []
        for item in self.items:
            word, lane = heard[item.order.run.name], self._lanes.get(item.number)
            if lane is not None and word not in (None, Word.LIFT):
                stopped.append(lane)
            elif lane is None and word is Word.LIFT and self._was_stopped(item):
                self.items.wait_again(item.number)
        return stopped

    def _heard(self, run: RunFolder) -> Word | None:
        """The last word, where one was added since the last look."""
        num = _count_words(run)
        if num == self._words[run.name]:
            return None
        with contextlib.suppress(TasukiError):  # half written: heard the next time
            said = last_said(run)
            self._words[run.name] = num
            return said.word if said is not None else None
        return None

    def _was_stopped(self, item: Item) -> bool:
        action = item.action
        is_stopped = isinstance(action, Hold | Fail) or (
            isinstance(action, Leave) and action.state in _STOPPED
        )
        return is_stopped and live_holder(item.order.run, now=self._clock.wall()) is None

    # -- the end ----------------------------------------------------------------------------

    def ends(self, notice: Cause) -> list[LaneEnd]:
        """Of all items; those that were not begun count as handed over."""
        cause = Cause.LIMIT if notice is Cause.NONE else notice
        handed_over = {
            item.order.run.name: item.action for item in self.items if item.is_handed_over
        }
        left = {
            item.number: handed_over.get(item.order.run.name) or self._leave(item, cause)
            for item in self.items
            if item.is_waiting
        }
        return self.items.ends(left)

    def _leave(self, item: Item, cause: Cause) -> Action:
        action = self._look(item, cause)
        if isinstance(action, Finish):
            return HandOver(cause, is_resumed=True)  # its work is done, its results are not written
        return action if isinstance(action, HandOver | Leave | Hold) else BLOCKED

    def describe(self, end: LaneEnd) -> dict[str, object]:
        assert end.number is not None
        order = self.items[end.number].order
        return {"id": end.number, "run": order.run.name, "until": order.until}

    def _now(self) -> float:
        return self._clock.monotonic() - self._began_at


def _count_words(run: RunFolder) -> int:
    try:
        return len(os.listdir(run.control))
    except OSError:
        return 0
