"""Which GPUs of its node each item gets, once it is known when it runs.

As many are free as it needs; among them, those on which what it depends on has run, so that chains
stay where they are; else neighbours (0 1, 2 3: cards that share a link have neighbouring numbers),
in the smallest gap that holds them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set

from tasuki.planning.packing.build import Built
from tasuki.planning.packing.problem import Problem

Gpus = tuple[int, ...]


def place_on_gpus(
    problem: Problem, built: Built, *, free: Sequence[Set[int]], taken: Mapping[int, Gpus]
) -> list[Gpus]:
    """By item. `free`: by node, at time 0; `taken`: what pinned items have already."""
    left = [set(gpus) for gpus in free]
    placed: list[Gpus] = [taken.get(j, ()) for j in range(problem.num_items)]
    ends = [start + length for start, length in zip(built.starts, problem.lengths, strict=True)]
    changes = sorted(
        [(ends[j], 0, j) for j in range(problem.num_items)]
        + [(built.starts[j], 1, j) for j in range(problem.num_items) if j not in taken]
    )
    for _, is_start, j in changes:
        node = built.nodes[j]
        if is_start:
            before = [placed[k] for k in problem.after[j] if built.nodes[k] == node]
            placed[j] = choose_gpus(left[node], problem.widths[j], before)
            left[node] -= set(placed[j])
        else:
            left[node] |= set(placed[j])
    return placed


def choose_gpus(free: Set[int], number: int, before: Sequence[Gpus]) -> Gpus:
    """`before`: where the items that it depends on have run."""
    for gpus in before:
        if len(gpus) == number and set(gpus) <= free:
            return gpus
    last = _ends_of_runs(free)
    blocks = [first for first in sorted(free) if first + number - 1 <= last[first]]
    if not blocks:
        return tuple(sorted(free))[:number]
    known = {gpu for gpus in before for gpu in gpus}
    sizes = Counter(last.values())
    best = min(
        blocks,
        key=lambda first: (
            -sum(first <= gpu < first + number for gpu in known),
            first % number != 0,
            sizes[last[first]],
            first,
        ),
    )
    return tuple(range(best, best + number))


def _ends_of_runs(free: Set[int]) -> dict[int, int]:
    """For each free GPU, the last of those that lie in a row with it."""
    ends: dict[int, int] = {}
    for gpu in sorted(free, reverse=True):
        ends[gpu] = ends.get(gpu + 1, gpu)
    return ends
