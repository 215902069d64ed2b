"""The items of a packed job: which are done, run, wait or can never begin, and what to start now.

No disk and no clock: packed.py tells what began and ended. Which item goes where is `plan`'s word
(`repack`), asked at the beginning and at every end. Should it fail, items begin in the order of the
plan where they fit: an odd plan costs time, never the job.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from tasuki.errors import StoreError
from tasuki.jobs.job import JobOrder, LaneItem, share_of_cpus
from tasuki.runs.values import Action, HandOver, LaneEnd, Leave

if TYPE_CHECKING:  # only jobs of several lanes need it, and a supervisor's start is measured
    from tasuki.planning.packing.values import ItemId, Placement, Schedule

Gpus = tuple[int, ...]
_GUESS_S = 3600.0
"""Of an item in a job where nobody knows how long anything takes."""
_START_TAKES_S = 15.0
"""With less time than this before its reserve, a job begins nothing of unknown length."""
BLOCKED = Leave("blocked")


@dataclass(slots=True)
class Item:
    order: LaneItem
    number: int
    width: int
    """GPUs."""
    cpus: int
    """0: not counted."""
    planned: Gpus
    after: Gpus = ()
    gpus: Gpus = ()
    """While it runs."""
    began_at: float = 0.0
    action: Action | None = None
    """How it ended."""

    @property
    def is_waiting(self) -> bool:
        return self.action is None and not self.gpus

    @property
    def is_done(self) -> bool:
        return isinstance(self.action, Leave) and self.action.state in ("complete", "done")

    @property
    def has_failed(self) -> bool:
        """Whatever comes after it cannot begin in this job."""
        return self.action is not None and not self.is_done and not self.is_handed_over

    @property
    def is_handed_over(self) -> bool:
        return isinstance(self.action, HandOver)


class Items:
    """In the order of the plan: by planned start, and never before what they come after."""

    def __init__(self, job: JobOrder) -> None:
        self._num_gpus = job.gpus
        # More slots than CPUs, as on a laptop: shares of one CPU each would leave slots idle.
        self._num_cpus = job.cpus if job.cpus is not None and job.cpus >= job.gpus else None
        self._items = {item.number: item for item in _in_order(_read(job, self._num_cpus), job)}
        self._schedule: Schedule | None = None
        self.problem: str = ""
        """Why the plan could not be asked, the last time."""

    def __iter__(self) -> Iterator[Item]:
        return iter(self._items.values())

    def __getitem__(self, number: int) -> Item:
        return self._items[number]

    # -- what happens -----------------------------------------------------------------------

    def begin(self, number: int, gpus: Gpus, now: float) -> None:
        item = self._items[number]
        item.gpus, item.began_at, item.action = gpus, now, None

    def end(self, number: int, action: Action) -> None:
        item = self._items[number]
        item.gpus, item.action = (), action

    def wait_again(self, number: int) -> None:
        item = self._items[number]
        item.gpus, item.action = (), None

    # -- what is so -------------------------------------------------------------------------

    @property
    def running(self) -> list[Item]:
        return [item for item in self._items.values() if item.gpus]

    def blocked(self) -> set[int]:
        """Waiting items that can never begin: what they come after failed, or was left; or they
        are wider than the job."""
        found: set[int] = set()
        for item in self._items.values():  # what an item comes after stands before it
            is_cut_off = any(b in found or self._items[b].has_failed for b in item.after)
            if item.is_waiting and (is_cut_off or item.width > self._num_gpus):
                found.add(item.number)
        return found

    def free_gpus(self) -> list[int]:
        used = {gpu for item in self.running for gpu in item.gpus}
        return [gpu for gpu in range(self._num_gpus) if gpu not in used]

    # -- what to start ----------------------------------------------------------------------

    def to_start(
        self, now: float, *, may_begin: Callable[[Item], bool] = lambda _: True
    ) -> list[tuple[Item, Gpus]]:
        """Items, and the GPUs to start them on, now."""
        blocked, free = self.blocked(), self.free_gpus()
        waiting = [
            item
            for item in self._items.values()
            if item.is_waiting and item.number not in blocked and may_begin(item)
        ]
        if not free or not any(self._is_ready(item) for item in waiting):
            return []
        try:
            chosen = self._ask_plan(waiting, free, now)
            self.problem = ""
        except Exception as error:  # a matter of speed: no reason to end a job
            chosen, self.problem = [], f"{type(error).__name__}: {error}"
        if self.problem or (not chosen and not self.running):
            chosen = self._first_that_fit(waiting, free)
        return chosen

    def _is_ready(self, item: Item) -> bool:
        return all(self._items[before].is_done for before in item.after)

    def _first_that_fit(self, waiting: Sequence[Item], free: list[int]) -> list[tuple[Item, Gpus]]:
        cpus = None if self._num_cpus is None else self._num_cpus - self._cpus_in_use()
        left, chosen = list(free), []
        for item in waiting:
            is_room = cpus is None or item.cpus <= cpus
            if not self._is_ready(item) or item.width > len(left) or not is_room:
                continue
            own = item.planned if set(item.planned) <= set(left) else tuple(left[: item.width])
            chosen.append((item, own))
            left = [gpu for gpu in left if gpu not in own]
            cpus = None if cpus is None else cpus - item.cpus
        return chosen

    def _cpus_in_use(self) -> int:
        return sum(item.cpus for item in self.running)

    def _ask_plan(
        self, waiting: Sequence[Item], free: list[int], now: float
    ) -> list[tuple[Item, Gpus]]:
        from tasuki.planning.packing.repack import Running, repack

        if self._schedule is None:
            self._schedule = _schedule(
                list(self._items.values()), gpus=self._num_gpus, cpus=self._num_cpus
            )
        schedule = self._schedule
        lengths = {placed.id: placed.item.seconds for placed in schedule.placements}
        ids = {item.number: _id(item) for item in self._items.values() if _id(item) in lengths}
        begun = {
            ids[item.number]: Running(
                node=0, gpus=item.gpus, end_s=item.began_at + lengths[ids[item.number]]
            )
            for item in self.running
        }
        placed = repack(
            schedule,
            done=[ids[n] for n in ids if self._items[n].is_done],
            running=begun,
            waiting=[ids[item.number] for item in waiting],
            free={0: free},
            now_s=now,
        )
        return self._checked(placed, free)

    def _checked(self, placed: Sequence[Placement], free: Sequence[int]) -> list[tuple[Item, Gpus]]:
        """Two lanes on one GPU would be worse than a lane that waits."""
        left, chosen = set(free), []
        for one in placed:
            item = self._items[int(one.item.stage)]
            if not self._is_ready(item) or not set(one.gpus) <= left:
                raise ValueError(f"{one.item.id} cannot begin on {one.gpus}")
            left -= set(one.gpus)
            chosen.append((item, one.gpus))
        return chosen

    # -- the end ----------------------------------------------------------------------------

    def ends(self, left: Mapping[int, Action]) -> list[LaneEnd]:
        """`left`: what becomes of those that were not begun."""
        blocked = self.blocked()
        return [
            LaneEnd(
                gpus=item.width,
                action=BLOCKED if item.number in blocked else item.action or left[item.number],
                is_continued=item.order.is_continued,
                number=item.number,
                after=item.after,
            )
            for item in self._items.values()
        ]

    def cpus_for(self, gpus: int, ends: Sequence[LaneEnd]) -> int | None:
        """Of a smaller job that goes on with those of `ends` that were handed over."""
        if self._num_cpus is None:
            return None
        again = [e.number for e in ends if isinstance(e.action, HandOver) and e.number is not None]
        widest = max((self._items[number].cpus for number in again), default=1)
        return min(self._num_cpus, max(widest, -(-self._num_cpus * gpus // self._num_gpus)))


def is_worth_it(item: LaneItem, *, remaining_s: float | None, job: JobOrder) -> bool:
    """Is there time for more than its start? A handover that brings nothing counts as a failure."""
    if remaining_s is None:
        return True
    left_s = remaining_s - job.reserve_s
    if item.seconds is not None and item.seconds <= left_s:
        return True
    start_s = _START_TAKES_S if job.limit_s is None else min(_START_TAKES_S, job.limit_s / 4)
    return left_s >= start_s


def _read(job: JobOrder, num_cpus: int | None) -> list[Item]:
    items: dict[int, Item] = {}
    for lane in job.lanes:
        for order in lane.items:
            number, width = order.number, len(lane.gpus)
            if number is None or number in items or not width:
                raise StoreError(f"{job.folder.lanes} is damaged: every item has an id of its own")
            cpus = share_of_cpus(order, width=width, job=job) if num_cpus is not None else 0
            items[number] = Item(
                order, number, width, cpus or 0, lane.gpus, after=tuple(dict.fromkeys(order.after))
            )
    if unknown := {b for item in items.values() for b in item.after} - items.keys():
        raise StoreError(f"{job.folder.lanes} is damaged: there is no item {min(unknown)}")
    return list(items.values())


def _in_order(items: Sequence[Item], job: JobOrder) -> list[Item]:
    """By planned start; within a run, each after the one before it, whether that is said or not."""
    found: dict[int, Item] = {}
    last_of: dict[str, int] = {}
    left = sorted(items, key=_planned_start)
    while left:
        item = next((one for one in left if all(b in found for b in one.after)), None)
        if item is None:
            raise StoreError(f"{job.folder.lanes} is damaged: items wait for each other")
        left.remove(item)
        before = last_of.get(item.order.run.name)
        if before is not None and before not in item.after:
            item.after = (*item.after, before)
        last_of[item.order.run.name] = item.number
        found[item.number] = item
    return list(found.values())


def _planned_start(item: Item) -> tuple[bool, float, int]:
    start = item.order.start_s
    return start is None, start or 0.0, item.number


def _schedule(items: Sequence[Item], *, gpus: int, cpus: int | None) -> Schedule:
    """All items as `repack` wants them: one after another. Of a schedule it takes the order."""
    from tasuki.planning.packing.values import Item as Packed
    from tasuki.planning.packing.values import Placement, Pool, Schedule

    known = [item.order.seconds for item in items if item.order.seconds]
    guess_s = median(known) if known else _GUESS_S
    fitting = [item for item in items if item.width <= gpus]
    ids = {item.number: _id(item) for item in fitting}
    placements, start_s = [], 0.0
    for item in fitting:
        packed = Packed(
            experiment=item.order.run.name,
            stage=str(item.number),
            gpus=item.width,
            seconds=max(0.001, item.order.seconds or guess_s),
            cpus=item.cpus,
            after=tuple(ids[before] for before in item.after if before in ids),
        )
        end_s = start_s + packed.seconds
        own = tuple(range(item.width))
        placements.append(Placement(item=packed, start_s=start_s, end_s=end_s, node=0, gpus=own))
        start_s = end_s
    pool = Pool(gpus_per_node=gpus, cpus_per_node=cpus)
    return Schedule(pool=pool, placements=tuple(placements), lower_bound_s=start_s or 1.0)


def _id(item: Item) -> ItemId:
    from tasuki.planning.packing.values import ItemId

    return ItemId(item.order.run.name, str(item.number))
