"""Prove that a small schedule cannot be beaten, or beat it: branch and bound on one node.

Time goes on from end to end. At each moment, every set of items that fit may be started; what
cannot lead to a shorter schedule is not followed:

- a chain that begins now ends too late, or so many GPU seconds were left idle that the rest does
  not fit any more;
- an item was left out that could have run in the idle time at once, or is started later although
  its GPUs were idle all the while: starting it earlier is no worse;
- the same items were started before, and the GPUs were free no later.

Gives up, and proves nothing, after a number of steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tasuki.planning.packing.build import Built
from tasuki.planning.packing.problem import Problem

_MOST_ITEMS = 24


@dataclass(frozen=True, slots=True)
class Proof:
    built: Built
    """The best known: what was given, or better."""
    is_complete: bool
    """Is nothing shorter?"""
    num_steps: int


@dataclass(frozen=True, slots=True)
class _Moment:
    now: int
    running: tuple[tuple[int, int], ...]
    """(end, item), the first to end first."""
    gpus: int
    cpus: int
    begun: int
    """Items as bits: running or ended."""
    ended: int
    barred: int
    """Could have been started earlier: their GPUs have been idle since."""
    idle: int
    """GPU time that was not used so far."""
    waits: bool = False
    """Nothing was started at the moment before."""


class _GivenUp(Exception):
    """Too many steps."""


def can_prove(problem: Problem) -> bool:
    return len(problem.rooms) == 1 and problem.num_items <= _MOST_ITEMS


def prove(problem: Problem, *, known: Built, bound: int, most_steps: int) -> Proof:
    """`bound`: what is as short as this needs no further search."""
    search = _Search(problem, known, bound, most_steps)
    try:
        search.follow(search.first())
    except _GivenUp:
        return Proof(search.best, False, search.num_steps)
    return Proof(search.best, True, search.num_steps)


class _Search:
    def __init__(self, problem: Problem, known: Built, bound: int, most_steps: int) -> None:
        self.best = known
        self.num_steps, self._most_steps = 0, most_steps
        self._problem, self._bound = problem, bound
        self._tails = problem.tails()
        self._needs = [sum(1 << k for k in before) for before in problem.after]
        self._work = sum(a * b for a, b in zip(problem.lengths, problem.widths, strict=True))
        self._all = (1 << problem.num_items) - 1
        self._by_tail = sorted(range(problem.num_items), key=lambda j: -self._tails[j])
        self._starts = [0] * problem.num_items
        self._seen: dict[int, list[_Moment]] = {}

    def first(self) -> _Moment:
        room = self._problem.rooms[0]
        return _Moment(0, (), room.gpus, room.cpus, 0, 0, 0, 0)

    def follow(self, moment: _Moment) -> None:
        if self.best.makespan <= self._bound:
            return
        if moment.begun == self._all:
            self._finish(moment)
        elif not self._is_hopeless(moment) and not self._is_seen(moment):
            ready = [
                j
                for j in self._by_tail
                if not (moment.begun | moment.barred) >> j & 1
                and self._needs[j] & ~moment.ended == 0
            ]
            self._choose(moment, ready, [], [])

    def _count(self, steps: int) -> None:
        self.num_steps += steps
        if self.num_steps > self._most_steps:
            raise _GivenUp

    def _finish(self, moment: _Moment) -> None:
        makespan = max(end for end, _ in moment.running)
        if makespan < self.best.makespan:
            nodes = [0] * self._problem.num_items
            self.best = Built(makespan, self._starts[:], nodes)

    def _is_hopeless(self, moment: _Moment) -> bool:
        most = self.best.makespan - 1
        if moment.idle > self._problem.num_gpus * most - self._work:
            return True
        for j in self._by_tail:
            if not moment.begun >> j & 1:
                return moment.now + self._tails[j] > most
        return False

    def _is_seen(self, moment: _Moment) -> bool:
        """Was the same begun before, no later, on another way?"""
        seen = self._seen.setdefault(moment.begun, [])
        self._count(len(seen))
        if moment.waits:  # the moment before has begun the same, and has only this way on
            seen.append(moment)
            return False
        ends = {j: end for end, j in moment.running}
        for old in seen:
            if (
                old.now <= moment.now
                and old.barred & ~moment.barred == 0
                and all(end <= ends.get(j, moment.now) for end, j in old.running)
            ):
                return True
        seen.append(moment)
        return False

    def _choose(
        self, moment: _Moment, ready: Sequence[int], started: list[int], left: list[int]
    ) -> None:
        """Start the first of `ready` or not; then the others."""
        self._count(1)
        if not ready:
            self._go_on(moment, started, left)
            return
        j, rest = ready[0], ready[1:]
        problem = self._problem
        gpus = sum(problem.widths[k] for k in started) + problem.widths[j]
        cpus = sum(problem.cpus[k] for k in started) + problem.cpus[j]
        if gpus <= moment.gpus and cpus <= moment.cpus:
            self._choose(moment, rest, [*started, j], left)
            if self._is_hopeless(moment):
                return
        self._choose(moment, rest, started, [*left, j])

    def _go_on(self, moment: _Moment, started: Sequence[int], left: Sequence[int]) -> None:
        """Start them, and look at the moment when the next item ends."""
        problem, now = self._problem, moment.now
        most = self.best.makespan - 1
        for j in started:
            self._starts[j] = now
        running = sorted([*moment.running, *((now + problem.lengths[j], j) for j in started)])
        gpus = moment.gpus - sum(problem.widths[j] for j in started)
        cpus = moment.cpus - sum(problem.cpus[j] for j in started)
        if not running or any(now + self._tails[j] > most for j in started):
            return
        begun = moment.begun | sum(1 << j for j in started)
        then = running[0][0]
        barred = 0
        for j in [*left, *(j for j in self._by_tail if moment.barred >> j & 1)]:
            if problem.widths[j] <= gpus and problem.cpus[j] <= cpus:
                if problem.lengths[j] <= then - now:
                    return
                barred |= 1 << j
        idle = moment.idle + gpus * (then - now)
        if begun == self._all:  # what is running now ends without a choice
            self.follow(_Moment(now, tuple(running), gpus, cpus, begun, moment.ended, 0, idle))
            return
        ending = [j for end, j in running if end == then]
        self.follow(
            _Moment(
                then,
                tuple(entry for entry in running if entry[0] > then),
                gpus + sum(problem.widths[j] for j in ending),
                cpus + sum(problem.cpus[j] for j in ending),
                begun,
                moment.ended | sum(1 << j for j in ending),
                barred,
                idle,
                waits=not started,
            )
        )
