"""The items of a job: what a supervisor starts as one attempt, and what each waits for.

Pure. Pieces of one run that follow each other in one lane are one item: an attempt keeps its claim
over its stages. An item ends where others wait for its weights, and where the run goes on in
another lane.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tasuki.commands.plan_request import PlanRequest
from tasuki.planning.values import Job, Piece
from tasuki.spec.resolved import start_of

_KINDS = ("train", "evaluate")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedItem:
    id: int
    """Unique in its job: by lane, then by place in it."""
    lane: int
    experiment: str
    pieces: tuple[Piece, ...]
    after: tuple[int, ...] = ()
    """Items that must have ended well before it."""
    is_limited: bool = False
    """It ends with its last stage, though the experiment may have more."""
    trains_only: bool = False
    """Another item of this job does the evaluation of its last stage."""
    job_start_s: float | None = None

    @property
    def stage(self) -> str:
        """The last."""
        return self.pieces[-1].stage

    @property
    def seconds(self) -> float | None:
        known = [piece.expected_s for piece in self.pieces if piece.expected_s is not None]
        return sum(known) if len(known) == len(self.pieces) else None

    @property
    def start_s(self) -> float | None:
        """From the job's beginning."""
        first = self.pieces[0].start_s
        if first is None or self.job_start_s is None:
            return None
        return max(0.0, first - self.job_start_s)

    @property
    def cpus(self) -> int | None:
        """None: all of its job's."""
        known = [piece.cpus for piece in self.pieces if piece.cpus is not None]
        return max(known, default=None)


def items_of(job: Job, request: PlanRequest) -> list[PlannedItem]:
    """By lane, in order."""
    sources = _sources(request)
    places = _places(job, request)
    cut_behind = set(sources.values())
    items: list[PlannedItem] = []
    for number, lane in enumerate(job.lanes):
        for pieces in _grouped(lane.stages, places, cut_behind):
            items.append(
                PlannedItem(
                    id=len(items),
                    lane=number,
                    experiment=pieces[0].experiment,
                    pieces=pieces,
                    job_start_s=job.start_s,
                )
            )
    return _joined(items, places, sources, has_wishes=bool(request.stages))


Key = tuple[str, str]
"""Of a stage: its experiment and its name."""


def _sources(request: PlanRequest) -> dict[Key, Key]:
    """A stage → whose weights it starts from, where they are another experiment's."""
    found = {}
    for experiment in request.experiments:
        for stage in experiment.stages:
            if start_of(stage.init_from) == "experiment":
                name, _, source = stage.init_from.partition("/")
                found[experiment.name, stage.name] = (name, source)
    return found


def _places(job: Job, request: PlanRequest) -> dict[tuple[str, str, str], int]:
    """Of each piece among those of its run in this job."""
    order = {
        (experiment.name, stage.name): number
        for experiment in request.experiments
        for number, stage in enumerate(experiment.stages)
    }
    pieces = [piece for lane in job.lanes for piece in lane.stages]
    pieces.sort(key=lambda one: (order[one.experiment, one.stage], _KINDS.index(one.kind)))
    numbers: dict[str, int] = {}
    places = {}
    for piece in pieces:
        number = numbers.get(piece.experiment, 0)
        places[_name(piece)] = number
        numbers[piece.experiment] = number + 1
    return places


def _name(piece: Piece) -> tuple[str, str, str]:
    return piece.experiment, piece.stage, piece.kind


def _grouped(
    pieces: Sequence[Piece], places: Mapping[tuple[str, str, str], int], cut_behind: set[Key]
) -> Iterator[tuple[Piece, ...]]:
    group: list[Piece] = []
    for piece in pieces:
        if group:
            former = group[-1]
            is_next = places[_name(former)] + 1 == places[_name(piece)]
            is_cut = former.stage != piece.stage and (former.experiment, former.stage) in cut_behind
            if former.experiment != piece.experiment or not is_next or is_cut:
                yield tuple(group)
                group = []
        group.append(piece)
    if group:
        yield tuple(group)


def _joined(
    items: Sequence[PlannedItem],
    places: Mapping[tuple[str, str, str], int],
    sources: Mapping[Key, Key],
    *,
    has_wishes: bool,
) -> list[PlannedItem]:
    """With what each waits for, and where it ends."""
    by_run: dict[str, list[PlannedItem]] = {}
    for item in items:
        by_run.setdefault(item.experiment, []).append(item)
    joined: dict[int, PlannedItem] = {}
    for own in by_run.values():
        own.sort(key=lambda item: places[_name(item.pieces[0])])
        for place, item in enumerate(own):
            after = {own[place - 1].id} if place else set()
            behind = own[place + 1 : place + 2]
            joined[item.id] = replace(
                item,
                after=tuple(sorted(after | set(_waits_for_weights(item, by_run, sources)))),
                is_limited=has_wishes or bool(behind),
                trains_only=any(other.pieces[0].stage == item.stage for other in behind),
            )
    return [joined[item.id] for item in items]


def _waits_for_weights(
    item: PlannedItem, by_run: Mapping[str, Sequence[PlannedItem]], sources: Mapping[Key, Key]
) -> Iterator[int]:
    for piece in item.pieces:
        source = sources.get((piece.experiment, piece.stage))
        if source is None or piece.kind != "train":
            continue
        for other in by_run.get(source[0], ()):
            if any(one.stage == source[1] for one in other.pieces):
                yield other.id
