"""The supervisor of a job's further nodes: starts the ranks that the first node's asks for.

Supervisors do not talk: node 0 writes what its ranks do into the job's folder, and the others do
the same; ranks agree among themselves. A follower decides nothing. It ends when node 0 has written
the outcome, or when a notice is over; if node 0 dies, srun sends that notice.
"""

from __future__ import annotations

import selectors
import signal
from collections.abc import Mapping
from dataclasses import asdict

from tasuki.clock import Clock
from tasuki.errors import EXIT_DONE, EXIT_RESUME_ME, StoreError
from tasuki.jobs.job import JobOrder
from tasuki.jobs.phase import Launcher, Phase, Rank
from tasuki.jobs.place import Place
from tasuki.jobs.ranks import read_order, start_ranks
from tasuki.runs.atomic import FORMAT, write_json
from tasuki.runs.jobs import find_start, read_outcome
from tasuki.runs.values import Cause
from tasuki.signals import SignalPipe

_TICK_S = 0.2
"""Also how soon a new phase is seen."""


class Follower:
    """One start of a job on one of its further nodes."""

    def __init__(
        self,
        job: JobOrder,
        place: Place,
        *,
        clock: Clock,
        launch: Launcher,
        environment: Mapping[str, str],
    ) -> None:
        self._job, self._place, self._clock = job, place, clock
        self._launch, self._environment = launch, environment
        self._gpus = job.lanes[0].gpus
        """A lane lies inside one node, or is the whole job."""
        self._start: int | None = None
        self._number = 0
        """Of the last phase that was seen."""
        self._phase: Phase | None = None
        self._notice_until: float | None = None

    def run(self) -> int:
        signals = SignalPipe()
        signals.install(signal.SIGCHLD)
        try:
            with selectors.DefaultSelector() as selector:
                selector.register(signals.reader, selectors.EVENT_READ)
                while not self._is_over():
                    self._turn(selector, signals)
        finally:
            signals.restore()
        # Node 0 has not heard what we have: srun takes it down when we do not end well.
        return EXIT_DONE if self._has_outcome() else EXIT_RESUME_ME

    def _is_over(self) -> bool:
        if self._phase is not None:
            return False
        until = self._notice_until
        return self._has_outcome() or (until is not None and self._clock.monotonic() >= until)

    def _has_outcome(self) -> bool:
        start = self._start
        return start is not None and read_outcome(self._job.folder, start) is not None

    def _turn(self, selector: selectors.DefaultSelector, signals: SignalPipe) -> None:
        wires = {rank.wire.fileno(): rank for rank in self._talking()}
        for fd in wires:
            selector.register(fd, selectors.EVENT_READ)
        ready = selector.select(timeout=_TICK_S)
        for fd in wires:
            selector.unregister(fd)
        for key, _ in ready:
            if key.fd not in wires:
                signals.drain()
            elif self._phase is not None:
                rank = wires[key.fd]
                for message in rank.wire.receive() or ():
                    self._phase.on_message(message, rank)
        if signals.has_notice and self._notice_until is None:
            self._notice_until = self._clock.monotonic() + self._job.ranks_grace_s
            self._tell_notice()
        self._watch()
        self._look_for_order()

    def _talking(self) -> list[Rank]:
        ranks = self._phase.ranks if self._phase is not None else []
        return [rank for rank in ranks if not rank.wire.is_closed and rank.status is None]

    def _look_for_order(self) -> None:
        if self._start is None and self._place.origin is not None:
            self._start = find_start(self._job.folder, self._place.origin)
        if self._start is None or self._notice_until is not None:
            return
        order = read_order(self._job.folder, self._start, self._number + 1)
        if order is None:
            return
        if self._phase is not None:  # node 0 has begun anew: ours are left over
            self._phase.kill_by(self._clock.monotonic(), "the first node began anew")
            return
        self._number += 1
        ranks = start_ranks(
            order,
            self._job,
            gpus=self._gpus,
            node=self._place.node,
            launch=self._launch,
            environment=self._environment,
        )
        grace_s = self._job.ranks_grace_s
        self._phase = Phase(order.kind, order.stage, ranks, grace_s=grace_s)
        # The clock is the first node's: its ranks say when all of them stop.
        self._phase.tell("deadline", remaining_s=None, grace_s=grace_s)

    def _tell_notice(self) -> None:
        if self._phase is None or self._notice_until is None:
            return
        left = self._notice_until - self._clock.monotonic()
        self._phase.notice = Cause.PREEMPTED  # why, only the first node finds out
        self._phase.tell("notice", cause=Cause.PREEMPTED, remaining_s=left)
        self._phase.kill_by(self._notice_until, "the notice was over")

    def _watch(self) -> None:
        phase = self._phase
        if phase is None:
            return
        now = self._clock.monotonic()
        phase.tick(now)
        phase.reap(now)
        if phase.has_ended:
            phase.close()
            self._phase = None
            self._report(phase)

    def _report(self, phase: Phase) -> None:
        """So that node 0 can say what happened: its own ranks may know only that ours are gone."""
        assert self._start is not None
        value = {
            "format": FORMAT,
            **asdict(phase.ending()),
            "is_only_lost": phase.is_only_lost,
        }
        path = self._job.folder.report(self._start, self._number, self._place.node)
        try:
            write_json(path, value)
        except StoreError:
            return  # node 0 says what it knows
