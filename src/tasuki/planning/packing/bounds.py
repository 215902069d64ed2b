"""How short a schedule can be at best: what the items themselves demand, whatever their order.

Three arguments, the largest counts:

- *chains*: a chain takes as long as its items;
- *work*: items that cannot start before `h` and are followed by at least `q` share the GPUs in
  between. The same holds for other measures of width under which no node ever holds more than its
  share (dual feasible functions: 3 of 4 GPUs count as all 4, since nobody can use the fourth but an
  item of 1, which then counts as none), and for CPUs;
- *slots*: where at most m items run at once, m + 1 take as long as their two shortest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from tasuki.planning.packing.problem import Problem

_MOST_HEADS = 32
"""Different earliest starts that are tried; more would bound big problems hardly better."""


@dataclass(frozen=True, slots=True, order=True)
class Bound:
    time: int
    reason: str


@dataclass(frozen=True, slots=True)
class _Measure:
    """A width for each item, and how much of it runs at once at most."""

    widths: Sequence[int]
    room: int
    reason: str


def lower_bound(problem: Problem) -> Bound:
    if not problem.num_items:
        return Bound(0, "nothing to do")
    heads, tails = problem.heads(), problem.tails()
    rests = [tail - length for tail, length in zip(tails, problem.lengths, strict=True)]
    bounds = [Bound(max(tails), "the longest chain")]
    for measure in _measures(problem):
        bounds.append(Bound(_work_bound(problem, measure, heads, rests), measure.reason))
    bounds.append(Bound(_slot_bound(problem, heads, rests), "items that need a GPU in turn"))
    return max(bounds, key=lambda bound: bound.time)


# -- work -------------------------------------------------------------------------------------


def _measures(problem: Problem) -> Iterator[_Measure]:
    widths, num_nodes, node = problem.widths, len(problem.rooms), problem.rooms[0]
    yield _Measure(widths, problem.num_gpus, "all work on all GPUs")
    if any(problem.cpus):
        cpus = sum(room.cpus for room in problem.rooms)
        yield _Measure(problem.cpus, cpus, "all work on all CPUs")
    if any(room != node for room in problem.rooms):
        return
    reason = "wide items that share no node"
    for least in sorted({w for w in widths if 1 < w <= node.gpus / 2}):
        table = {w: _cut_off(w, least=least, gpus=node.gpus) for w in set(widths)}
        yield _Measure([table[w] for w in widths], num_nodes * node.gpus, reason)
    for most in sorted({node.gpus // w for w in widths}):
        table = {w: _stepped(w, most=most, gpus=node.gpus) for w in set(widths)}
        yield _Measure([table[w] for w in widths], num_nodes * node.gpus * most, reason)


def _cut_off(width: int, *, least: int, gpus: int) -> int:
    """What leaves less than `least` has the node alone; narrower ones do not count."""
    if width > gpus - least:
        return gpus
    return width if width >= least else 0


def _stepped(width: int, *, most: int, gpus: int) -> int:
    """Rounded to whole shares, of which a node has `most`; a node measures gpus × most."""
    whole, rest = divmod((most + 1) * width, gpus)
    return whole * gpus if rest else most * width


def _work_bound(
    problem: Problem, measure: _Measure, heads: Sequence[int], rests: Sequence[int]
) -> int:
    works = [length * w for length, w in zip(problem.lengths, measure.widths, strict=True)]
    order = sorted((j for j, work in enumerate(works) if work), key=lambda j: -rests[j])
    best = 0
    for head in _some(sorted({heads[j] for j in order})):
        work = 0
        for j in order:
            if heads[j] >= head:
                work += works[j]
                found = head - (-work // measure.room) + rests[j]
                best = max(best, found)
    return best


def _some(values: Sequence[int]) -> Sequence[int]:
    step = -(-len(values) // _MOST_HEADS)
    return values[:: max(1, step)]


# -- slots ------------------------------------------------------------------------------------


def _slot_bound(problem: Problem, heads: Sequence[int], rests: Sequence[int]) -> int:
    best = 0
    for width in set(problem.widths):
        slots = sum(room.gpus // width for room in problem.rooms)
        items = [j for j, w in enumerate(problem.widths) if w >= width]
        items.sort(key=lambda j: (-problem.lengths[j], j))
        best = max(best, _turns(problem, items, slots, heads, rests))
    return best


def _turns(
    problem: Problem, items: Sequence[int], slots: int, heads: Sequence[int], rests: Sequence[int]
) -> int:
    """Of the r × slots + 1 longest, some slot takes r + 1 in turn."""
    sums = [0, *accumulate(problem.lengths[j] for j in items)]
    longest = 0
    for turns in range(1, (len(items) - 1) // slots + 1):
        last = turns * slots + 1
        longest = max(longest, sums[last] - sums[last - turns - 1])
    return min(heads[j] for j in items) + longest + min(rests[j] for j in items)
