"""Spread experiments over several jobs side by side, as few as meet a deadline.

Pure. Experiments that start from each other's weights stay together. Groups go, the one with the
most work first, to the job that has the least so far.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from tasuki.planning.laid import Chains, LaidJob, Terms
from tasuki.planning.packed import Packed, bound_of, pack_into_jobs
from tasuki.planning.parts import Slots, parts_of
from tasuki.planning.values import StageWork

_MOST_TRIES = 24


def spread(chains: Chains, terms: Terms) -> Packed | None:
    """None: no number of jobs meets the deadline."""
    assert terms.deadline_s is not None
    groups = _groups(chains)
    if bound_of(chains, terms, num_nodes=len(groups)) > terms.deadline_s:
        return None  # not even with a job for each
    for number in _numbers(groups, terms):
        packed = _side_by_side(groups, number, terms)
        if _end(packed.jobs) <= terms.deadline_s:
            bound_s = bound_of(chains, terms, num_nodes=number)
            return Packed(packed.jobs, bound_s, packed.reasons)
    return None


def _end(jobs: tuple[LaidJob, ...]) -> float:
    return max((job.start_s or 0.0) + (job.expected_s or 0.0) for job in jobs)


def _numbers(groups: list[list[list[StageWork]]], terms: Terms) -> Iterator[int]:
    """From the least that could do, up; of very many the last."""
    assert terms.deadline_s is not None
    work_s = sum(_work_s(group, terms) for group in groups)
    least = max(2, math.ceil(work_s / (terms.gpus * terms.deadline_s)))
    most = min(len(groups), terms.at_once or len(groups))
    if least > most:
        return
    yield from range(least, min(most, least + _MOST_TRIES) + 1)
    if most > least + _MOST_TRIES:
        yield most


def _work_s(group: list[list[StageWork]], terms: Terms) -> float:
    parts = parts_of(group, Slots(gpus=terms.gpus, cpus=terms.cpus), capacity_s=None)
    return sum(part.seconds * part.gpus for part in parts)


def _side_by_side(groups: list[list[list[StageWork]]], number: int, terms: Terms) -> Packed:
    places: list[list[int]] = [[] for _ in range(number)]
    loads = [0.0] * number
    works = [_work_s(group, terms) for group in groups]
    for group in sorted(range(len(groups)), key=lambda one: (-works[one], one)):
        least = min(range(number), key=lambda place: (loads[place], place))
        places[least].append(group)
        loads[least] += works[group]
    jobs: list[LaidJob] = []
    for place in places:
        chains = [chain for group in sorted(place) for chain in groups[group]]
        jobs += [job.moved(len(jobs)) for job in pack_into_jobs(chains, terms).jobs]
    reasons = (f"{number} jobs side by side: one after another would miss the deadline",)
    return Packed(tuple(jobs), None, reasons)


def _groups(chains: Chains) -> list[list[list[StageWork]]]:
    """Experiments that are joined by `init_from`, in order."""
    names = [chain[0].experiment for chain in chains if chain]
    root = {name: name for name in names}

    def find(name: str) -> str:
        while root[name] != name:
            name = root[name]
        return name

    for chain in chains:
        for work in chain:
            source = (work.starts_from or "").split("/")[0]
            if source in root:
                root[find(work.experiment)] = find(source)
    groups: dict[str, list[list[StageWork]]] = {}
    for chain in chains:
        if chain:
            groups.setdefault(find(chain[0].experiment), []).append(list(chain))
    return list(groups.values())
