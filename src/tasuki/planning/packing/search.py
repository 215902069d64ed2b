"""Look for a short schedule: rules, both builders, then annealing of an order.

Same input, same result: the effort is counted in placements of items, never in seconds. Each
schedule is *justified*: all items are pushed to the right as far as they go, in the order of their
ends, then back to the left. That closes holes, and is worth more than many further tries: without
it a search of the same length is 0.3 % worse on 20 chains, and rules alone 1 to 3 %.

Proofs are not its business: it stops early when the lower bound is reached.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random

from tasuki.planning.packing.build import Built, build_parallel, build_serial
from tasuki.planning.packing.problem import Problem, order_by_priority

EFFORT = 200_000
"""Placements of items: half a second to a second."""
_MOST_FOR_RULES = 1_000_000
"""Placements: on hundreds of nodes, not every rule is tried."""
_FIRST_THRESHOLD = 0.01
"""Of the makespan: how much worse an order may be at first for the search to go on from there."""


@dataclass(frozen=True, slots=True)
class Found:
    built: Built
    how: str
    num_built: int


def cost_of(problem: Problem) -> int:
    """Of building once, in placements of a small problem: there is more to look through in a long
    schedule, on many nodes, and among many kinds of needs."""
    num_needs = len(set(zip(problem.widths, problem.cpus, strict=True)))
    more = problem.num_items // 500 + (len(problem.rooms) - 1) // 2 + num_needs // 16
    return problem.num_items * (1 + more)


# -- rules ------------------------------------------------------------------------------------


def rules(problem: Problem) -> dict[str, list[int]]:
    """By name, the rank of each item: what comes first."""
    lengths, widths, tails = problem.lengths, problem.widths, problem.tails()
    works = _works_behind(problem)
    keys: dict[str, Callable[[int], tuple[int, ...]]] = {
        "longest item first": lambda j: (lengths[j],),
        "longest chain first": lambda j: (tails[j],),
        "most work first": lambda j: (works[j],),
        "widest first": lambda j: (widths[j], tails[j]),
        "long and wide first": lambda j: (tails[j] ** 2 * widths[j],),
    }
    return {name: _ranks(problem, key) for name, key in keys.items()}


def _works_behind(problem: Problem) -> list[int]:
    """GPU time of each item and of the heaviest chain that hangs on it."""
    works = [length * w for length, w in zip(problem.lengths, problem.widths, strict=True)]
    own = list(works)
    for j in reversed(problem.order):
        for k in problem.after[j]:
            works[k] = max(works[k], own[k] + works[j])
    return works


def _ranks(problem: Problem, key: Callable[[int], tuple[int, ...]]) -> list[int]:
    """The largest key gets rank 0; equals in order of name."""
    return ranks_of(sorted(range(problem.num_items), key=key, reverse=True))


def ranks_of(order: Sequence[int]) -> list[int]:
    ranks = [0] * len(order)
    for rank, j in enumerate(order):
        ranks[j] = rank
    return ranks


def apply_rules(problem: Problem, *, bound: int) -> Found:
    """Every rule by both builders, as it is and justified, until the bound is reached."""
    best: Found | None = None
    num_built, most = 0, _MOST_FOR_RULES // cost_of(problem)
    for built, how in _built_by_rules(problem):
        num_built += 1
        if best is None or built.makespan < best.built.makespan:
            best = Found(built, how, num_built)
        if best.built.makespan <= bound or num_built >= most:
            break
    assert best is not None
    return replace(best, num_built=num_built)


def _built_by_rules(problem: Problem) -> Iterator[tuple[Built, str]]:
    mirror = problem.reverse()
    for rule, ranks in rules(problem).items():
        built = build_parallel(problem, ranks)
        yield built, f"{rule}, as GPUs get free"
        yield justify(problem, mirror, built), f"{rule}, as GPUs get free, pushed together"
        order = order_by_priority(ranks, problem.after, problem.then)
        built = build_serial(problem, order)
        yield built, f"{rule}, each at its earliest"
        yield justify(problem, mirror, built), f"{rule}, each at its earliest, pushed together"


def justify(problem: Problem, mirror: Problem, built: Built) -> Built:
    """To the right, then to the left; on one node never longer than before."""
    late = build_serial(mirror, _by_end(problem, built))
    return build_serial(problem, _by_end(problem, late))


def _by_end(problem: Problem, built: Built) -> list[int]:
    """The last to end first: in the mirror, that is the first to start."""
    ends = [start + length for start, length in zip(built.starts, problem.lengths, strict=True)]
    return sorted(range(problem.num_items), key=lambda j: -ends[j])


# -- annealing --------------------------------------------------------------------------------


def anneal(problem: Problem, first: Found, *, bound: int, seed: int, effort: int = EFFORT) -> Found:
    """Move items in the order; go on from what is better, or not much worse: less and less so."""
    num_tries = effort // cost_of(problem)
    mirror, random = problem.reverse(), Random(seed)
    best, how, tried = first.built, first.how, first.num_built
    current, order = best, _by_start(best)
    while tried < num_tries and best.makespan > bound:
        moved = _move_some(problem, order, random)
        built = justify(problem, mirror, build_serial(problem, moved))
        tried += 3
        share_left = 1 - tried / num_tries
        threshold = _FIRST_THRESHOLD * best.makespan * share_left * random.random()
        if built.makespan <= current.makespan + threshold:
            current, order = built, _by_start(built)
        if built.makespan < best.makespan:
            best, how = built, "annealing of the order"
    return Found(best, how, tried)


def _by_start(built: Built) -> list[int]:
    return sorted(range(len(built.starts)), key=built.starts.__getitem__)


def _move_some(problem: Problem, order: list[int], random: Random) -> list[int]:
    moved = order[:]
    for _ in range(1 + int(random.random() ** 2 * 3)):
        _move_one(problem, moved, random)
    return moved


def _move_one(problem: Problem, order: list[int], random: Random) -> None:
    """To any place behind what the item depends on and before what depends on it."""
    at = int(random.random() * len(order))
    j = order[at]
    ranks = ranks_of(order)
    first = max((ranks[k] for k in problem.after[j]), default=-1) + 1
    last = min((ranks[k] for k in problem.then[j]), default=len(order)) - 1
    del order[at]
    order.insert(first + int(random.random() * (last - first + 1)), j)
