"""Jobs of stages that each use all GPUs of a job: a chain of jobs per experiment.

Pure. Chains of different experiments may run at the same time, as far as there are GPUs: on a
cluster each in its own jobs, here as many as fit the machine, in order.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import replace

from tasuki.planning.cut import JobDraft, cut_into_jobs
from tasuki.planning.laid import Chains, LaidJob, Leg, Terms
from tasuki.planning.packing.bounds import lower_bound
from tasuki.planning.packing.problem import state_problem
from tasuki.planning.packing.values import Pool
from tasuki.planning.parts import Slots, parts_of
from tasuki.planning.values import Lane, Piece, StageWork


def chain_into_jobs(chains: Chains, terms: Terms) -> tuple[LaidJob, ...]:
    """`init_from: EXPERIMENT/STAGE` waits for that experiment's last job."""
    jobs: list[LaidJob] = []
    last_job_of: dict[str, int] = {}
    for chain in chains:
        drafts = cut_into_jobs(chain, limit_s=terms.limit_s, cut=terms.cut)
        sources = dict.fromkeys((w.starts_from or "").split("/")[0] for w in chain)
        after = tuple(last_job_of[name] for name in sources if name in last_job_of)
        for draft in drafts:
            jobs.append(_lay(draft, after, chain, terms))
            after = (len(jobs) - 1,)
        if drafts:
            last_job_of[chain[0].experiment] = len(jobs) - 1
    return _put_in_time(jobs, terms)


def bound_of_chains(chains: Chains, terms: Terms) -> float | None:
    """No jobs of these stages end earlier, each on all GPUs of a job; None: times are missing."""
    works = [replace(work, gpus=1, cpus=1) for chain in chains for work in chain]
    if not works or any(work.trains and work.wall_s is None for work in works):
        return None if works else 0.0
    at_once = min(terms.at_once or len(chains), len(chains))
    by_chain: dict[str, list[StageWork]] = {}
    for work in works:
        by_chain.setdefault(work.experiment, []).append(work)
    parts = parts_of(list(by_chain.values()), Slots(gpus=1, cpus=1), capacity_s=None)
    left = {part.id: part for part in parts}
    problem = state_problem([part.item(left) for part in parts], Pool(gpus_per_node=at_once))
    return problem.seconds(lower_bound(problem).time)


def _lay(
    draft: JobDraft, after: tuple[int, ...], chain: Sequence[StageWork], terms: Terms
) -> LaidJob:
    by_stage = {work.stage: work for work in chain}
    legs = []
    useful_s = 0.0
    for number, piece in enumerate(draft.pieces):
        leg = _leg(piece, by_stage[piece.stage], after=(number - 1,) if number else ())
        legs.append(leg)
        # An evaluation has one rank, whatever the job has.
        useful_s += leg.loose_s * (terms.gpus if piece.kind == "train" else 1)
    is_known = bool(draft.expected_s)
    return LaidJob(
        after=after,
        lanes=(Lane(gpus=tuple(range(terms.gpus)), stages=draft.pieces),),
        expected_s=draft.expected_s,
        reserve_s=draft.reserve_s,
        start_s=None,
        useful=useful_s / (terms.gpus * (draft.expected_s or 1.0)) if is_known else None,
        reason=draft.reason.split(": ", 1)[1],
        legs=tuple(legs),
    )


def _leg(piece: Piece, work: StageWork, *, after: tuple[int, ...]) -> Leg:
    whole_s = piece.expected_s or 0.0
    fixed_s = work.start_s + (work.save_s if piece.kind == "train" else 0.0)
    fixed_s = min(fixed_s, whole_s)
    return Leg(fixed_s=fixed_s, loose_s=whole_s - fixed_s, error=work.error, after=after)


def _put_in_time(jobs: Sequence[LaidJob], terms: Terms) -> tuple[LaidJob, ...]:
    """In order, each as soon as those before it have ended and there are GPUs for it."""
    seconds = [math.inf if job.expected_s is None else job.expected_s for job in jobs]
    missing = [len(job.after) for job in jobs]
    then: list[list[int]] = [[] for _ in jobs]
    for number, job in enumerate(jobs):
        for before in job.after:
            then[before].append(number)
    ready = [number for number, count in enumerate(missing) if not count]
    heapq.heapify(ready)
    running: list[tuple[float, int]] = []
    free: list[int | None] = [None] * (terms.at_once or len(jobs))
    now, laid = 0.0, list(jobs)
    while ready or running:
        while ready and free:
            number, former = heapq.heappop(ready), free.pop()
            is_waiting = former is not None and former not in jobs[number].after
            held_by = (former,) if is_waiting and former is not None else ()
            laid[number] = _begin(jobs[number], now, held_by)
            heapq.heappush(running, (now + seconds[number], number))
        now, number = heapq.heappop(running)
        free.append(number if terms.at_once else None)
        for after in then[number]:
            missing[after] -= 1
            if not missing[after]:
                heapq.heappush(ready, after)
    return tuple(laid)


def _begin(job: LaidJob, now: float, held_by: tuple[int, ...]) -> LaidJob:
    if math.isinf(now):
        return replace(job, start_s=None, held_by=held_by)
    [lane] = job.lanes
    pieces, at = [], now
    for piece in lane.stages:
        is_known = not math.isinf(at)
        pieces.append(replace(piece, start_s=at if is_known else None))
        at += math.inf if piece.expected_s is None else piece.expected_s
    lanes = (replace(lane, stages=tuple(pieces)),)
    return replace(job, start_s=now, held_by=held_by, lanes=lanes)
