"""Pack the stages of many experiments side by side into jobs: lanes of one or several GPUs.

Pure. Job after job: all that is left is packed; what ends within the job is its work, the rest goes
to the next one, which comes after it. `cut: fill` also begins what does not end in time, at whole
steps. Of very much work only what could fit a job several times is looked at for that job.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tasuki.errors import PlanError
from tasuki.planning.cut import capacity_of, reserve_of
from tasuki.planning.laid import Chains, LaidJob, Leg, Terms
from tasuki.planning.packing.bounds import lower_bound
from tasuki.planning.packing.lanes import lanes_of
from tasuki.planning.packing.pack import pack
from tasuki.planning.packing.problem import order_by_priority, state_problem
from tasuki.planning.packing.search import rules
from tasuki.planning.packing.values import Item, ItemId, Pool, Schedule
from tasuki.planning.packing.within import fill, schedule_in_order
from tasuki.planning.parts import Part, Slots, cut_anew, parts_of, split
from tasuki.planning.values import Lane, Piece, StageWork
from tasuki.units import format_seconds

_TICK_S = 0.002
"""Packing counts in whole milliseconds, rounded up."""
_AHEAD = 3
"""So many times what fits a job is looked at for it."""
_MOST_PACKED = 200
"""More parts, where one job does not hold them, are packed by rules alone."""
_MOST_JOBS = 10_000


@dataclass(frozen=True, slots=True)
class Packed:
    jobs: tuple[LaidJob, ...]
    lower_bound_s: float | None
    """Of these jobs one after another; None: not all times are known."""
    reasons: tuple[str, ...]


def pack_into_jobs(chains: Chains, terms: Terms) -> Packed:
    works = [work for chain in chains for work in chain]
    if not works:
        return Packed((), 0.0, ())
    slots = Slots(gpus=terms.gpus, cpus=terms.cpus)
    reserve_s = reserve_of(works)
    room_s = None if terms.limit_s is None else capacity_of(terms.limit_s, reserve_s)
    parts = parts_of(chains, slots, capacity_s=None if room_s is None else room_s - _TICK_S)
    packing = _Packing(parts, terms, room_s)
    jobs: list[LaidJob] = []
    while packing.left:
        if len(jobs) >= _MOST_JOBS:
            raise PlanError(
                f"this would need more than {_MOST_JOBS:,} jobs",
                hint="ask for a longer `cluster.time_limit`, or for fewer experiments at a time",
            )
        taken, schedule = packing.next_job()
        jobs.append(_lay(jobs, taken, schedule, reserve_s))
    is_known = all(part.is_known for part in parts)
    bound_s = max(packing.bound_s, bound_of(chains, terms)) if is_known else None
    return Packed(tuple(jobs), bound_s, packing.reasons)


def bound_of(chains: Chains, terms: Terms, *, num_nodes: int = 1) -> float:
    """No plan of these stages is shorter, with as many jobs at a time, however they are cut."""
    parts = parts_of(chains, Slots(gpus=terms.gpus, cpus=terms.cpus), capacity_s=None)
    left = {part.id: part for part in parts}
    pool = Pool(gpus_per_node=terms.gpus, num_nodes=num_nodes, cpus_per_node=terms.cpus)
    problem = state_problem([part.item(left) for part in parts], pool)
    return problem.seconds(lower_bound(problem).time)


class _Packing:
    """What is left, and how the next job is made of it."""

    def __init__(self, parts: Sequence[Part], terms: Terms, room_s: float | None) -> None:
        self.left = {part.id: part for part in parts}
        self.bound_s = 0.0
        """Of a single job, where packing it has proved more than the bound of all work says."""
        self.reasons: tuple[str, ...] = ()
        self._terms, self._room_s = terms, room_s
        self._pool = Pool(gpus_per_node=terms.gpus, cpus_per_node=terms.cpus)
        self._order = self._by_chain()
        self._num_jobs = 0
        self._num_parts = len(parts)

    def _by_chain(self) -> list[ItemId]:
        """The longest chain first, nothing before what it comes after."""
        problem = state_problem(self._items(self.left), self._pool)
        ranks = rules(problem)["longest chain first"]
        order = order_by_priority(ranks, problem.after, problem.then)
        return [problem.ids[j] for j in order]

    def _items(self, ids: Sequence[ItemId] | dict[ItemId, Part]) -> list[Item]:
        return [self.left[i].item(self.left) for i in ids]

    def next_job(self) -> tuple[dict[ItemId, Part], Schedule]:
        self._num_jobs += 1
        self._order = [i for i in self._order if i in self.left]
        room_s = self._room_s
        if room_s is None or self._may_fit(room_s):
            items = self._items(self._order)
            schedule = pack(items, self._pool, effort=self._terms.effort)
            if room_s is None or schedule.makespan_s <= room_s:
                return self._take_all(schedule)
        else:
            schedule = None
        assert room_s is not None
        return self._take_some(room_s, schedule)

    def _may_fit(self, room_s: float) -> bool:
        work_s = sum(part.seconds * part.gpus for part in self.left.values())
        return work_s <= room_s * self._terms.gpus

    def _take_all(self, schedule: Schedule) -> tuple[dict[ItemId, Part], Schedule]:
        taken, self.left = self.left, {}
        if self._num_jobs == 1:
            self.bound_s, self.reasons = schedule.lower_bound_s, schedule.reasons
        return taken, schedule

    def _take_some(
        self, room_s: float, whole: Schedule | None
    ) -> tuple[dict[ItemId, Part], Schedule]:
        """What ends within the job; with `cut: fill` also the beginning of what does not."""
        near = self._items(self._near(room_s))
        if whole is None and self._num_parts <= _MOST_PACKED:
            whole = pack(near, self._pool, effort=self._terms.effort // 20)
        first = [placed.item for placed in whole.placements] if whole is not None else near
        filling = fill(near, self._pool, until_s=room_s, first=first)
        taken = {item.id: self.left[item.id] for item in filling.placed}
        begun: list[StageWork] = []
        if self._terms.cut == "fill":
            for item in near:
                part = self.left[item.id]
                least_s = 2 * (part.work.start_s + part.work.save_s)
                room_left_s = 0.0 if item.id in taken else filling.room_s(item)
                if room_left_s < least_s or room_left_s <= 0:
                    continue  # not worth starting for
                parted = split(part, room_s=room_left_s - _TICK_S)
                if parted is not None and filling.place(parted[0].item(self.left)):
                    taken[parted[0].id], self.left[item.id] = parted
                    begun.append(part.work)
        for i in taken:
            self.left.pop(i, None)
        for work in begun:
            self._cut_anew(work, room_s)
        schedule = schedule_in_order(filling.placed, self._pool, reasons=())
        return taken, schedule

    def _cut_anew(self, work: StageWork, room_s: float) -> None:
        """Where a job has begun a range of a stage the next may hold its rest and a further range:
        they are one."""
        own = [i for i in self._order if i in self.left and self.left[i].trains(work)]
        parts = cut_anew([self.left.pop(i) for i in own], capacity_s=room_s - _TICK_S)
        at = self._order.index(own[0])
        others = [i for i in self._order[at:] if i not in own]
        self._order = [*self._order[:at], *(part.id for part in parts), *others]
        if parts[-1].id != own[-1]:  # who waited for both waits for the evaluation now
            for i, part in self.left.items():
                after = tuple(parts[-1].id if one == own[-1] else one for one in part.after)
                self.left[i] = replace(part, after=after)
        self.left |= {part.id: part for part in parts}

    def _near(self, room_s: float) -> list[ItemId]:
        """The first of those that are left, as many as could fill the job several times."""
        found, work_s = [], 0.0
        for i in self._order:
            if work_s > _AHEAD * room_s * self._terms.gpus:
                break
            found.append(i)
            work_s += self.left[i].seconds * self.left[i].gpus
        return found


def _lay(
    before: Sequence[LaidJob],
    parts: dict[ItemId, Part],
    schedule: Schedule,
    reserve_s: float,
) -> LaidJob:
    start_s = _end_of(before[-1]) if before else 0.0
    is_known = all(part.is_known for part in parts.values())
    unknown_s = min(
        (placed.end_s for placed in schedule.placements if not parts[placed.id].is_known),
        default=float("inf"),
    )
    useful_s = sum(part.useful_s * part.gpus for part in parts.values())
    makespan_s = schedule.makespan_s
    num_gpus = 1 + max(gpu for placed in schedule.placements for gpu in placed.gpus)
    lanes = []
    numbers = {placed.id: number for number, placed in enumerate(schedule.placements)}
    by_number: dict[int, Leg] = {}
    for lane in lanes_of(schedule):
        pieces: list[Piece] = []
        former: tuple[int, ...] = ()
        for entry in lane.entries:
            placed, part = entry.placed, parts[entry.placed.id]
            # What comes behind a part of unknown length starts nobody knows when.
            knows_start = start_s is not None and placed.start_s < unknown_s
            pieces += part.pieces((start_s or 0.0) + placed.start_s if knows_start else None)
            after = (*former, *(numbers[i] for i in entry.waits_for))
            by_number[numbers[placed.id]] = _leg(part, after)
            former = (numbers[placed.id],)
        lanes.append(Lane(gpus=lane.gpus, stages=tuple(pieces)))
    legs = [by_number[number] for number in range(len(by_number))]
    return LaidJob(
        after=(len(before) - 1,) if before else (),
        lanes=tuple(lanes),
        expected_s=makespan_s if is_known else None,
        reserve_s=reserve_s,
        start_s=start_s,
        useful=useful_s / (num_gpus * makespan_s) if is_known else None,
        reason=_told(parts, makespan_s if is_known else None, num_lanes=len(lanes)),
        legs=tuple(legs),
    )


def _end_of(job: LaidJob) -> float | None:
    if job.start_s is None or job.expected_s is None:
        return None
    return job.start_s + job.expected_s


def _leg(part: Part, after: tuple[int, ...]) -> Leg:
    return Leg(
        fixed_s=part.seconds - part.useful_s,
        loose_s=part.useful_s,
        error=part.work.error,
        after=after,
    )


def _told(parts: dict[ItemId, Part], expected_s: float | None, *, num_lanes: int) -> str:
    stages = {(part.work.experiment, part.work.stage) for part in parts.values()}
    experiments = {experiment for experiment, _ in stages}
    told = format_seconds(expected_s) if expected_s is not None else "unknown"
    lanes = f"{num_lanes} lane{'s' if num_lanes != 1 else ''}"
    many = f"{len(stages)} stage{'s' if len(stages) != 1 else ''}"
    of = f"{len(experiments)} experiment{'s' if len(experiments) != 1 else ''}"
    return f"{many} of {of} in {lanes} ({told})"
