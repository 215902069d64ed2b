"""The supervisor's event loop: signals, the ranks' words, the clock; one thread, no work in
handlers.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import sys
from collections.abc import Callable, Iterator
from functools import cached_property, partial
from typing import TYPE_CHECKING

from tasuki.clock import Clock
from tasuki.errors import RunError, StoreError, TasukiError, UsageError
from tasuki.jobs.alerts import AT_HANDOVER_S, LIMIT_S, Alerts
from tasuki.jobs.job import JobOrder, LaneOrder
from tasuki.jobs.lane import Lane
from tasuki.jobs.local_allocation import LocalAllocation
from tasuki.jobs.phase import Launcher, Phase, Rank
from tasuki.jobs.place import Place
from tasuki.runs.atomic import create_exclusive
from tasuki.runs.decide import settle, stops_successors
from tasuki.runs.jobs import begin_start, write_outcome
from tasuki.runs.values import Cause, HandOver, LaneEnd, Settlement, Verdict
from tasuki.signals import SignalPipe

if TYPE_CHECKING:
    from tasuki.jobs.packed import PackedLanes  # for packed jobs only
    from tasuki.slurm.allocation import Allocation  # a job of this machine does without Slurm

_TICK_S = 0.25
_ANSWERS_WITHIN_S = 3.0


class Supervisor:
    """One start of a job on this node."""

    def __init__(
        self,
        job: JobOrder,
        *,
        clock: Clock,
        launch: Launcher,
        environment: dict[str, str],
        leash: int | None,
        place: Place | None = None,
    ) -> None:
        self._job = job
        self._clock = clock
        self._environment = environment
        self._place = place = place or Place()
        self._start = begin_start(job.folder, place.origin)
        self._leash = leash
        self._launch = launch
        self._asked_at = clock.monotonic()
        self._notice = Cause.NONE
        self._lanes: list[Lane] = []
        self._packed: PackedLanes | None = None
        self._alerts = Alerts(job, environment, clock)
        self._remaining_at: float | None = None
        """On the monotonic clock: when the scheduler ends this start."""

    def run(self) -> Settlement:
        """Until every lane has ended; then say what becomes of the job."""
        with _signals() as signals, selectors.DefaultSelector() as selector:
            selector.register(signals.reader, selectors.EVENT_READ, "signals")
            if self._leash is not None:
                os.set_blocking(self._leash, False)
                selector.register(self._leash, selectors.EVENT_READ, "leash")
            self._begin()
            # Not before: the ranks' imports take seconds, and a busy controller may too.
            self._ask_deadline()
            self._alerts.begin()
            while any(lane.end is None for lane in self._lanes):
                self._turn(selector, signals)
        settlement = self._settle()
        for lane in self._lanes:
            lane.end_sinks()
        self._alerts.wait(self._alerts_have_s())
        return settlement

    def _alerts_have_s(self) -> float:
        """Nobody who is to go on waits for them long."""
        goes_on = any(lane.end and isinstance(lane.end.action, HandOver) for lane in self._lanes)
        within_s = AT_HANDOVER_S if goes_on or self._notice is not Cause.NONE else LIMIT_S
        left_s = self._remaining_s()
        return within_s if left_s is None else min(within_s, left_s - AT_HANDOVER_S)

    def _begin(self) -> None:
        if self._job.is_packed:
            from tasuki.jobs.packed import PackedLanes

            self._packed = PackedLanes(self._job, self._make_lane, self._clock)
            self._take_up()
            return
        if len(self._job.lanes) > 1 and self._job.nodes > 1:
            raise UsageError(
                f"job {self._job.folder.name} has several lanes on {self._job.nodes} nodes",
                hint="lanes lie inside one node: ask for one, or let every stage use all GPUs",
            )
        self._lanes = [self._make_lane(order, n) for n, order in enumerate(self._job.lanes)]
        for lane in self._lanes:
            self._guard(lane, lane.begin)

    def _make_lane(self, order: LaneOrder, number: int) -> Lane:
        lane = Lane(
            self._job,
            order,
            number,
            self._start,
            self._clock,
            self._launch,
            self._environment,
            self._place,
            self._ask_deadline,
            self._alerts.tell_due,
        )
        if self._remaining_at is not None:
            lane.set_remaining(self._remaining_s())
        return lane

    def _remaining_s(self) -> float | None:
        """By the last answer."""
        end = self._remaining_at
        return None if end is None else end - self._clock.monotonic()

    def _take_up(self) -> None:
        """Of a packed job: begin what there are free GPUs for. Some end at once."""
        packed = self._packed
        while packed is not None and self._notice is Cause.NONE:
            lanes = packed.next_lanes(self._remaining_s())
            self._lanes += lanes
            for lane in lanes:
                self._guard(lane, lane.begin)
            if packed.items.problem:
                _say(f"the plan could not be asked what comes next: {packed.items.problem}")
            if not packed.note_ends(has_notice=False):
                return

    def _watch_items(self) -> None:
        """Of a packed job: what people say of one run, and what ended."""
        packed = self._packed
        if packed is None:
            return
        now = self._clock.monotonic()
        until = now + self._job.notice_s(is_preempted=False)
        for lane in packed.listen(now):
            self._guard(lane, partial(lane.give_notice, Cause.CANCELLED, until=until))
        packed.note_ends(has_notice=self._notice is not Cause.NONE)
        self._take_up()

    def _turn(self, selector: selectors.DefaultSelector, signals: SignalPipe) -> None:
        wires = {rank.wire.fileno(): (phase, rank) for phase, rank in self._open_wires()}
        for fd in wires:
            selector.register(fd, selectors.EVENT_READ, "wire")
        ready = selector.select(timeout=_TICK_S)
        for fd in wires:
            selector.unregister(fd)
        for key, _ in ready:
            if key.data == "signals":
                signals.drain()
            elif key.data == "leash":
                self._on_leash(selector)
            else:
                phase, rank = wires[key.fd]
                for message in rank.wire.receive() or ():
                    phase.on_message(message, rank)
        if signals.has_notice and self._notice is Cause.NONE:
            now = self._clock.monotonic()  # before the controller takes its time
            self._give_notice(self._cause(), now)
        self._watch_clock()
        self._reap()
        self._watch_items()

    def _open_wires(self) -> Iterator[tuple[Phase, Rank]]:
        for lane in self._lanes:
            if lane.phase is not None:
                for rank in lane.phase.ranks:
                    if not rank.wire.is_closed and rank.status is None:
                        yield lane.phase, rank

    @cached_property
    def _allocation(self) -> Allocation:
        """Made when it is first asked: its imports need not come before the ranks."""
        return _allocation(self._job, self._place, self._start, self._clock, self._environment)

    def _cause(self) -> Cause:
        try:
            return self._allocation.cause_of_notice()
        except StoreError:
            return Cause.PREEMPTED  # a file that cannot be read: save, and come back

    def _on_leash(self, selector: selectors.DefaultSelector) -> None:
        """Whoever started us is gone: hand over."""
        assert self._leash is not None
        if os.read(self._leash, 1) == b"":
            selector.unregister(self._leash)
            self._give_notice(Cause.INTERRUPTED, self._clock.monotonic())

    def _give_notice(self, cause: Cause, now: float) -> None:
        if self._notice is not Cause.NONE:
            return
        self._notice = cause
        if cause is Cause.CANCELLED and self._job.is_slurm:
            with contextlib.suppress(StoreError):
                from tasuki.jobs.turn import remember_cancel

                remember_cancel(self._job)
        until = now + self._job.notice_s(is_preempted=cause is Cause.PREEMPTED)
        for lane in self._lanes:
            self._guard(lane, partial(lane.give_notice, cause, until=until))

    def _watch_clock(self) -> None:
        now = self._clock.monotonic()
        left = None if self._remaining_at is None else self._remaining_at - now
        if now - self._asked_at >= self._allocation.patience_s(left):
            self._ask_deadline()
        for lane in self._lanes:
            self._guard(lane, partial(lane.watch_clock, now))
        self._alerts.look(now)
        if self._notice is Cause.NONE:
            self._alerts.watch_deadlines(now)

    def _ask_deadline(self) -> None:
        self._asked_at = self._clock.monotonic()
        with contextlib.suppress(StoreError):  # keep the last word where there is no new one
            remaining = self._allocation.remaining_s()
            self._remaining_at = None if remaining is None else self._asked_at + remaining
        remaining = None if self._remaining_at is None else self._remaining_at - self._asked_at
        for lane in self._lanes:
            lane.set_remaining(remaining)

    def _reap(self) -> None:
        now = self._clock.monotonic()
        for lane in self._lanes:
            if lane.phase is None:
                continue
            lane.phase.reap(now)
            if lane.phase.has_ended:
                self._ask_deadline()
                self._guard(lane, lane.on_phase_ended)

    def _guard(self, lane: Lane, act: Callable[[], None]) -> None:
        """A lane whose run folder cannot be written, or whose ranks cannot be started, ends; the
        other lanes go on."""
        try:
            act()
        except TasukiError as error:
            lane.give_up(error)
        except OSError as error:
            if self._packed is None:
                raise  # a requeue may help, and nobody else is here
            lane.give_up(RunError(f"it cannot be worked on here: {error}"))

    def _settle(self) -> Settlement:
        settlement, lanes = self._packed_ends() if self._packed else self._plain_ends()
        value = {
            "verdict": settlement.verdict,
            "exit_code": settlement.exit_code,
            "at": self._clock.wall(),
            **lanes,
        }
        try:
            write_outcome(self._job.folder, self._start, value)
            if settlement.verdict is not Verdict.END and self._place.number is not None:
                self._mark_return(self._place.number)
        except StoreError:
            return Settlement(Verdict.END, settlement.exit_code)
        return settlement

    def _plain_ends(self) -> tuple[Settlement, dict[str, object]]:
        ends = [lane.end for lane in self._lanes if lane.end is not None]
        return settle(ends), {"lanes": [_describe(end) for end in ends]}

    def _packed_ends(self) -> tuple[Settlement, dict[str, object]]:
        packed = self._packed
        assert packed is not None
        ends = packed.ends(self._notice)
        settlement = settle(ends, gpus=self._job.gpus)
        lanes = [{**packed.describe(end), **_describe(end)} for end in ends]
        if settlement.gpus is None:
            return settlement, {"lanes": lanes}
        cpus = packed.items.cpus_for(settlement.gpus, ends)
        return settlement, {"gpus": settlement.gpus, "cpus": cpus, "lanes": lanes}

    def _mark_return(self, number: str) -> None:
        """Slurm has requeued the job already: its script need not ask, and is gone the sooner."""
        if self._allocation.comes_back:
            mark = self._job.folder.comes_back(number, self._place.restarts)
            create_exclusive(mark, b"")


def _allocation(
    job: JobOrder, place: Place, start: int, clock: Clock, environment: dict[str, str]
) -> Allocation:
    if place.number is None:
        return LocalAllocation(job.folder, start=start, limit_s=job.limit_s, clock=clock)
    from tasuki.slurm.allocation import SlurmAllocation
    from tasuki.slurm.client import Slurm

    # Asked between the words of ranks: who waits for a busy controller hears none of them.
    slurm = Slurm(environment=environment, clock=clock, tries=1, within_s=_ANSWERS_WITHIN_S)
    return SlurmAllocation(
        slurm,
        place.number,
        limit_s=job.limit_s,
        surplus_s=job.surplus_s,
        grace_s=job.partition_grace_s,
        clock=clock,
    )


@contextlib.contextmanager
def _signals() -> Iterator[SignalPipe]:
    """A child that exits wakes the loop too."""
    signals = SignalPipe()
    signals.install(signal.SIGCHLD)
    try:
        yield signals
    finally:
        signals.restore()


def _say(text: str) -> None:
    sys.stderr.write(f"tasuki: {text}\n")
    sys.stderr.flush()


def _describe(end: LaneEnd) -> dict[str, object]:
    action = end.action
    facts = {name: str(getattr(action, name)) for name in getattr(action, "__slots__", ())}
    return {
        "action": type(action).__name__.lower(),
        **facts,
        "stops_successors": stops_successors(action),
    }
