"""What is packed: the work of stages as parts, none longer than a job can be used.

Pure. A part is a stage's training, or a range of its steps where it is longer than a job, each with
a start and a save of its own; and its evaluation, with it where both use one GPU, else by itself:
an evaluation has one rank. Within a run part follows part; a stage that starts from another
experiment's weights follows the last part of that stage.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from tasuki.errors import PlanError
from tasuki.planning.cut import (
    make_piece,
    part_that_fits,
    refuse_long_evaluation,
    refuse_without_progress,
)
from tasuki.planning.packing.values import Item, ItemId
from tasuki.planning.values import Piece, StageWork

_ROUNDING = 1 + 1e-9
_MOST_PARTS = 10_000
_GUESS_S = 3600.0
"""Of a stage of which nobody knows anything, where nothing else is known either."""
_LEAST_S = 0.001
"""What is packed takes some time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What runs in one piece."""

    id: ItemId
    work: StageWork
    gpus: int
    cpus: int
    after: tuple[ItemId, ...]
    steps_s: float | None
    """None: it only evaluates."""
    from_step: int | None = None
    to_step: int | None = None
    evaluates: bool = False

    @property
    def is_known(self) -> bool:
        return self.steps_s is None or self.work.wall_s is not None

    @property
    def evaluation_s(self) -> float:
        """With its start."""
        return self.work.start_s + (self.work.evaluate_s or 0.0) if self.evaluates else 0.0

    @property
    def training_s(self) -> float:
        """With its start and its last save."""
        if self.steps_s is None:
            return 0.0
        return self.work.start_s + self.steps_s + self.work.save_s

    @property
    def seconds(self) -> float:
        return max(_LEAST_S, self.training_s + self.evaluation_s)

    @property
    def useful_s(self) -> float:
        """In steps and evaluations."""
        evaluation_s = (self.work.evaluate_s or 0.0) if self.evaluates else 0.0
        return (self.steps_s or 0.0) + evaluation_s

    def trains(self, work: StageWork) -> bool:
        """Is it a range of this stage?"""
        return self.work is work and self.steps_s is not None

    def item(self, left: Mapping[ItemId, Part]) -> Item:
        """For packing, among those that are left: what it came after may be done by then."""
        return Item(
            experiment=self.id.experiment,
            stage=self.id.stage,
            kind=self.id.kind,
            gpus=self.gpus,
            cpus=self.cpus,
            seconds=self.seconds,
            after=tuple(before for before in self.after if before in left),
        )

    def pieces(self, start_s: float | None) -> Iterator[Piece]:
        """As a plan tells them."""
        if self.steps_s is not None:
            seconds = self.training_s if self.is_known else None
            piece = make_piece(self.work, "train", self.from_step, self.to_step, seconds)
            yield replace(piece, start_s=start_s, cpus=self.cpus)
            if start_s is not None:
                start_s = start_s + seconds if seconds is not None else None
        if self.evaluates:
            is_known = self.is_known and self.work.evaluate_s is not None
            seconds = self.evaluation_s if is_known or self.work.wall_s is not None else None
            piece = make_piece(self.work, "evaluate", None, None, seconds)
            yield replace(piece, start_s=start_s, cpus=self.cpus)


@dataclass(frozen=True, slots=True, kw_only=True)
class Slots:
    """What a job has to share."""

    gpus: int
    cpus: int

    def cpus_for(self, gpus: int) -> int:
        """As many as its share of the GPUs, and one at least."""
        return max(1, self.cpus * gpus // self.gpus)


def parts_of(
    chains: Sequence[Sequence[StageWork]], slots: Slots, *, capacity_s: float | None
) -> list[Part]:
    """`chains`: by experiment, in order. Without a capacity nothing is split."""
    found: list[Part] = []
    last: dict[str, ItemId] = {}
    guess_s = _guess(chains)
    for chain in chains:
        before: tuple[ItemId, ...] = ()
        for work in chain:
            for part in _parts_of_stage(work, slots, before, guess_s, capacity_s):
                found.append(part)
                before = (part.id,)
            last[f"{work.experiment}/{work.stage}"] = before[0]
    return [_with_source(part, last) for part in found]


def _guess(chains: Sequence[Sequence[StageWork]]) -> float:
    """A stage of unknown length is taken for as long as the others."""
    known = [w.wall_s for chain in chains for w in chain if w.trains and w.wall_s]
    return median(known) if known else _GUESS_S


def _with_source(part: Part, last: Mapping[str, ItemId]) -> Part:
    """The first part of a stage waits for the weights it starts from, if they are to be made."""
    source = part.work.starts_from
    is_first = part.steps_s is not None and part.from_step == part.work.from_step
    if source is None or not is_first or source not in last:
        return part
    return replace(part, after=(*part.after, last[source]))


def _parts_of_stage(
    work: StageWork,
    slots: Slots,
    before: tuple[ItemId, ...],
    guess_s: float,
    capacity_s: float | None,
) -> Iterator[Part]:
    """In order, each after the one before it."""
    evaluation = Part(
        id=ItemId(work.experiment, work.stage, "evaluate"),
        work=work,
        gpus=1,
        cpus=slots.cpus_for(1),
        after=before,
        steps_s=None,
        evaluates=True,
    )
    if capacity_s is not None and (work.evaluates or not work.trains):
        refuse_long_evaluation(work, capacity_s)
    if work.trains:
        whole = _training(work, slots, before, guess_s, capacity_s)
        *firsts, final = _split_long(whole, capacity_s)
        yield from firsts
        evaluation = replace(evaluation, after=(final.id,))
        both = replace(final, evaluates=True)
        fits = capacity_s is None or both.seconds <= capacity_s * _ROUNDING
        if work.evaluates and work.gpus == 1 and fits:
            yield both
            return
        yield final
    if work.evaluates or not work.trains:
        yield evaluation


def _training(
    work: StageWork,
    slots: Slots,
    before: tuple[ItemId, ...],
    guess_s: float,
    capacity_s: float | None,
) -> Part:
    if capacity_s is not None:
        refuse_without_progress(work, capacity_s)
        guess_s = min(guess_s, capacity_s - work.start_s - work.save_s)
    return Part(
        id=ItemId(work.experiment, work.stage, "train"),
        work=work,
        gpus=work.gpus,
        cpus=min(work.cpus or slots.cpus_for(work.gpus), slots.cpus),
        after=before,
        steps_s=work.wall_s if work.wall_s is not None else guess_s,
        from_step=work.from_step,
        to_step=work.total_steps,
    )


def _split_long(part: Part, capacity_s: float | None) -> list[Part]:
    found = []
    while capacity_s is not None and part.training_s > capacity_s * _ROUNDING:
        parted = split(part, room_s=capacity_s)
        assert parted is not None, "refuse_without_progress refuses what does not fit"
        found.append(parted[0])
        part = parted[1]
        if len(found) >= _MOST_PARTS:
            raise PlanError(
                f"stage `{part.work.stage}` would need more than {_MOST_PARTS:,} jobs",
                hint="ask for a longer `cluster.time_limit`, fewer `epochs`, or split the stage "
                "into several that are run by name (`--stages`)",
            )
    return [*found, part]


def cut_anew(ranges: Sequence[Part], *, capacity_s: float) -> list[Part]:
    """What is left of one stage's training, after a job has done a part of its first range: all but
    the last as long as a job can be used, so that no job has two of them. The last keeps the name
    that others wait for; an evaluation that fits no more beside it comes by itself."""
    first, last = ranges[0], ranges[-1]
    whole = replace(
        last,
        steps_s=sum(one.steps_s or 0.0 for one in ranges),
        from_step=first.from_step,
        after=first.after,
        evaluates=False,
    )
    *firsts, final = _split_long(whole, capacity_s)
    both = replace(final, evaluates=last.evaluates)
    if both.seconds <= capacity_s * _ROUNDING:
        return [*firsts, both]
    name = ItemId(last.id.experiment, last.id.stage, "evaluate")
    evaluation = replace(
        both, id=name, after=(final.id,), steps_s=None, from_step=None, to_step=None
    )
    return [*firsts, final, evaluation]


def split(part: Part, *, room_s: float) -> tuple[Part, Part] | None:
    """What fits the room, and the rest, which keeps the name that others wait for. None: no step
    of it fits, or all of it does."""
    if part.steps_s is None or not part.is_known:
        return None
    work = part.work
    room_s = room_s - work.start_s - work.save_s
    seconds, to_step = part_that_fits(work, part.from_step, room_s)
    if not 0 < seconds < part.steps_s:
        return None
    number = f"{to_step}" if to_step is not None else f"{part.steps_s - seconds:.3f} s to go"
    name = ItemId(part.id.experiment, f"{work.stage} until {number}", "train")
    first = replace(part, id=name, steps_s=seconds, to_step=to_step, evaluates=False)
    rest = replace(part, steps_s=part.steps_s - seconds, from_step=to_step, after=(name,))
    return first, rest
