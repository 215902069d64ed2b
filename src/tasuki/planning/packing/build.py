"""Two ways to make a schedule of an order of items; GPUs of a node are alike here, only counted.

*Parallel*: time goes on from end to end, and at each moment the first items that fit are started.
*Serial*: items are taken in order, and each gets the earliest hole it fits into; what is placed
stays. The first never lets GPUs idle that somebody could use; the second may, for a wide item.

These are the inner loops of every search: plain lists, few calls.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from tasuki.planning.packing.problem import Problem


@dataclass(frozen=True, slots=True)
class Built:
    """By item: when it starts, and on which node."""

    makespan: int
    starts: list[int]
    nodes: list[int]


# -- serial -----------------------------------------------------------------------------------


@dataclass(slots=True)
class Profile:
    """What of a node is free from `times[i]` to `times[i + 1]`, and after the last for ever."""

    times: list[int]
    gpus: list[int]
    cpus: list[int]

    def earliest(self, not_before: int, length: int, width: int, cpus: int) -> int:
        """The first start from which on an item fits for as long as it takes."""
        times, free, idle = self.times, self.gpus, self.cpus
        last = len(times)
        i = bisect_right(times, not_before) - 1
        start = not_before
        while True:
            while free[i] < width or (cpus and idle[i] < cpus):
                i += 1
                start = times[i]
            end = start + length
            i += 1
            while i < last and times[i] < end:
                if free[i] < width or (cpus and idle[i] < cpus):
                    break
                i += 1
            else:
                return start

    def take(self, start: int, end: int, width: int, cpus: int) -> None:
        times, free, idle = self.times, self.gpus, self.cpus
        first = self._cut(start)
        behind = self._cut(end)
        for i in range(first, behind):
            free[i] -= width
        if cpus:
            for i in range(first, behind):
                idle[i] -= cpus
        # Equal neighbours become one: what is full costs no search later.
        for i in (behind, first):
            if i and free[i] == free[i - 1] and idle[i] == idle[i - 1]:
                del times[i], free[i], idle[i]

    def _cut(self, time: int) -> int:
        i = bisect_left(self.times, time)
        if i == len(self.times) or self.times[i] != time:
            self.times.insert(i, time)
            self.gpus.insert(i, self.gpus[i - 1])
            self.cpus.insert(i, self.cpus[i - 1])
        return i


def build_serial(problem: Problem, order: Sequence[int]) -> Built:
    """`order` has no item before what it depends on."""
    profiles = [Profile([0], [room.gpus], [room.cpus]) for room in problem.rooms]
    lengths, widths, cpus, after = problem.lengths, problem.widths, problem.cpus, problem.after
    starts, ends = [0] * problem.num_items, [0] * problem.num_items
    nodes = [0] * problem.num_items
    for j, node in enumerate(problem.pinned):
        if node is not None:
            nodes[j], ends[j] = node, lengths[j]
            profiles[node].take(0, lengths[j], widths[j], cpus[j])
    only = profiles[0] if len(profiles) == 1 else None
    for j in order:
        if problem.pinned[j] is not None:
            continue
        not_before = 0
        for k in after[j]:
            not_before = max(not_before, ends[k])
        length, width = lengths[j], widths[j]
        if only is not None:
            profile, start = only, only.earliest(not_before, length, width, cpus[j])
        else:
            nodes[j], start = _earliest_of(profiles, problem, j, not_before)
            profile = profiles[nodes[j]]
        profile.take(start, start + length, width, cpus[j])
        starts[j], ends[j] = start, start + length
    return Built(max(ends, default=0), starts, nodes)


def _earliest_of(
    profiles: Sequence[Profile], problem: Problem, j: int, not_before: int
) -> tuple[int, int]:
    """(node, start): the earliest; among equals where it leaves the fewest GPUs free."""
    length, width, cpus = problem.lengths[j], problem.widths[j], problem.cpus[j]
    best: tuple[int, int, int] | None = None
    for node, profile in enumerate(profiles):
        if problem.rooms[node].gpus < width or problem.rooms[node].cpus < cpus:
            continue
        start = profile.earliest(not_before, length, width, cpus)
        if best is not None and start > best[0]:
            continue
        found = (start, profile.gpus[bisect_right(profile.times, start) - 1], node)
        if best is None or found < best:
            best = found
    assert best is not None, "state_problem refuses items that fit nowhere"
    return best[2], best[0]


# -- parallel ---------------------------------------------------------------------------------


def build_parallel(problem: Problem, ranks: Sequence[int]) -> Built:
    """Lowest rank first; ranks are 0 … n - 1, each once."""
    return _Parallel(problem, ranks).build()


class _Parallel:
    """Items that are ready wait in a queue per need (GPUs and CPUs): if the first of a queue does
    not fit, nor does the rest of it."""

    def __init__(self, problem: Problem, ranks: Sequence[int]) -> None:
        self._problem, self._ranks = problem, ranks
        needs = list(zip(problem.widths, problem.cpus, strict=True))
        self._needs = sorted(set(needs))
        number = {need: i for i, need in enumerate(self._needs)}
        self._queue_of = [number[need] for need in needs]
        self._queues: list[list[int]] = [[] for _ in self._needs]
        self._free = [room.gpus for room in problem.rooms]
        self._idle = [room.cpus for room in problem.rooms]
        self._missing = [len(before) for before in problem.after]
        self._running: list[int] = []
        """end × n + item: one number is cheaper to compare than two."""

    def build(self) -> Built:
        problem = self._problem
        n = problem.num_items
        starts, nodes = [0] * n, [0] * n
        by_rank = [0] * n
        for j, rank in enumerate(self._ranks):
            by_rank[rank] = j
        self._begin(nodes)
        now = 0
        while True:
            self._start_what_fits(now, by_rank, starts, nodes)
            if not self._running:
                return Built(now, starts, nodes)
            now = self._go_on(nodes)

    def _begin(self, nodes: list[int]) -> None:
        problem = self._problem
        for j, node in enumerate(problem.pinned):
            if node is not None:
                nodes[j] = node
                self._free[node] -= problem.widths[j]
                self._idle[node] -= problem.cpus[j]
                self._running.append(problem.lengths[j] * problem.num_items + j)
            elif not self._missing[j]:
                self._queues[self._queue_of[j]].append(self._ranks[j])
        heapify(self._running)
        for queue in self._queues:
            heapify(queue)

    def _start_what_fits(
        self, now: int, by_rank: list[int], starts: list[int], nodes: list[int]
    ) -> None:
        free, idle, lengths = self._free, self._idle, self._problem.lengths
        n = len(lengths)
        queues = [i for i, queue in enumerate(self._queues) if queue]
        while queues:
            best, chosen, room = n, -1, -1
            for i in queues:
                rank = self._queues[i][0]
                if rank < best:
                    node = self._tightest(*self._needs[i])
                    if node >= 0:
                        best, chosen, room = rank, i, node
            if chosen < 0:
                return
            j = by_rank[heappop(self._queues[chosen])]
            width, cpus = self._needs[chosen]
            free[room] -= width
            idle[room] -= cpus
            starts[j], nodes[j] = now, room
            heappush(self._running, (now + lengths[j]) * n + j)
            if not self._queues[chosen]:
                queues.remove(chosen)

    def _tightest(self, width: int, cpus: int) -> int:
        """The node that fits with the fewest GPUs free; -1: none does."""
        found, least = -1, 1 << 60
        for node, free in enumerate(self._free):
            if width <= free < least and cpus <= self._idle[node]:
                found, least = node, free
        return found

    def _go_on(self, nodes: list[int]) -> int:
        """To the next moment at which something ends."""
        problem, running = self._problem, self._running
        n = problem.num_items
        now = running[0] // n
        until = (now + 1) * n
        while running and running[0] < until:
            j = heappop(running) % n
            self._free[nodes[j]] += problem.widths[j]
            self._idle[nodes[j]] += problem.cpus[j]
            for k in problem.then[j]:
                self._missing[k] -= 1
                if not self._missing[k]:
                    heappush(self._queues[self._queue_of[k]], self._ranks[k])
        return now
