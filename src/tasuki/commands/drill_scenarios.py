"""What a drill does to a run, and where: pure, from the shape of the shortened stage.

Places are named as in failpoints.py and counted as an attempt passes them. A stage's first
checkpoint (step 0) passes the places of a save once, in the first attempt.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tasuki.errors import UsageError

STEPS = 18
STEPS_PER_EPOCH = 6
SAVE_EVERY = 4
"""Steps of the whole drill, of an epoch (about), and from save to save: borders of epochs and saves
fall together only sometimes."""

HEARD_S = 1.0
"""A notice takes milliseconds to be heard; on a busy machine longer."""

_TOO_SHORT = "the whole run is shorter"

Order = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Of the shortened stage, as the undisturbed twin found it."""

    steps: int = STEPS
    steps_per_epoch: int = STEPS_PER_EPOCH
    has_border: bool = True
    """False: it is not known where an epoch of the user's own loader ends."""
    world: int = 1
    is_coarse: bool = False
    """A loop of one's own gathers gradients: it is left where the next step of its optimizer ends,
    not in the one that was struck."""

    @property
    def middle(self) -> int:
        """The first step of the second epoch, if there is one: later than the very beginning."""
        return self.steps_per_epoch if 2 * self.steps_per_epoch <= self.steps else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    name: str
    title: str
    struck: tuple[str, ...] = ()
    """Where, in words; one for each time it is interrupted."""
    failpoints: tuple[Order, ...] = ()
    is_damaged: bool = False
    """The newest checkpoint is damaged before the second attempt."""
    must_tell: str = ""
    """An event that shows that it happened."""
    resumes_at: int | None = None
    """The step from which the second attempt must go on, where the scenario hangs on it."""
    not_here: str = ""
    """Why it cannot be done with this stage."""

    @property
    def attempts(self) -> int:
        return len(self.struck) + 1


def plan_scenarios(shape: Shape, wanted: Sequence[str] = ()) -> list[Scenario]:
    """In the order of NAMES; all of them, or those that are wanted."""
    for name in wanted:
        if name not in NAMES:
            raise UsageError(
                f"there is no scenario `{name}`", hint=f"there are: {', '.join(NAMES)}"
            )
    made = [make(shape) for name, make in _MAKERS.items() if not wanted or name in wanted]
    return [replace(one, resumes_at=None) for one in made] if shape.is_coarse else made


def planned_kills(name: str) -> set[int]:
    """The attempts of a scenario that the drill itself kills; of another run none."""
    made = _MAKERS[name](Shape()).failpoints if name in _MAKERS else ()
    return {order["claim"] for order in made if order["do"] == "kill"}


def _term(shape: Shape) -> Scenario:
    at = shape.middle + (shape.steps_per_epoch + 1) // 2
    return Scenario(
        name="term",
        title="TERM in a step",
        struck=(f"TERM in step {at}",),
        failpoints=_term_in(at, shape),
    )


def _kill_in_save(shape: Shape) -> Scenario:
    title = "KILL in a save, before its commit and right after it"
    if shape.steps <= SAVE_EVERY:
        return Scenario(name="kill-in-save", title=title, not_here=_TOO_SHORT)
    # The first pass is step 0's; the second attempt goes on from there and saves here once more.
    return Scenario(
        name="kill-in-save",
        title=title,
        struck=(
            f"KILL before the commit of step {SAVE_EVERY}",
            f"KILL right after the commit of step {SAVE_EVERY}",
        ),
        failpoints=(
            {"at": "save.rename", "do": "kill", "count": 2, "claim": 1, "rank": 0},
            {"at": "save.renamed", "do": "kill", "count": 1, "claim": 2, "rank": 0},
        ),
    )


def _twice(shape: Shape) -> Scenario:
    per_epoch = shape.steps_per_epoch
    title = "interrupted twice in one epoch"
    if per_epoch < 2:
        return Scenario(name="twice", title=title, not_here="an epoch has one step")
    first = shape.middle + max(1, per_epoch // 3)
    second = shape.middle + max(2, per_epoch - 1)
    return Scenario(
        name="twice",
        title=title,
        struck=(f"TERM in step {first}", f"KILL before step {second}"),
        failpoints=(
            *_term_in(first, shape),
            {
                "at": "step.begin",
                "do": "kill",
                "count": second - first,
                "claim": 2,
                "rank": shape.world - 1,
            },
        ),
        resumes_at=first,
    )


def _border(shape: Shape) -> Scenario:
    title = "interrupted on the border of two epochs"
    per_epoch = shape.steps_per_epoch
    if not shape.has_border or per_epoch >= shape.steps:
        reason = "an epoch of this loader does not end within the drill"
        return Scenario(name="border", title=title, not_here=reason)
    return Scenario(
        name="border",
        title=title,
        struck=(f"TERM in step {per_epoch}, the last of its epoch",),
        failpoints=_term_in(per_epoch, shape),
        resumes_at=per_epoch,
    )


def _full_disk(shape: Shape) -> Scenario:
    title = "full disk in two saves, then a KILL"
    first, second, third = (n * SAVE_EVERY for n in (1, 2, 3))
    if shape.steps <= third:
        return Scenario(name="full-disk", title=title, not_here=_TOO_SHORT)
    return Scenario(
        name="full-disk",
        title=title,
        struck=(f"no room for steps {first} and {second}, KILL after the commit of step {third}",),
        failpoints=(
            {"at": "save.written", "do": "ENOSPC", "count": 2, "times": 2, "claim": 1, "rank": 0},
            {"at": "save.pruned", "do": "kill", "claim": 1, "rank": 0},
        ),
        must_tell="save-failed",
    )


def _damaged(shape: Shape) -> Scenario:
    # Not a step at which one saves anyway, so that something lies between it and the one before.
    at = shape.middle + max(1, shape.steps_per_epoch - 2)
    at += at % SAVE_EVERY == 0
    return Scenario(
        name="damaged",
        title="damaged newest checkpoint",
        struck=(f"TERM in step {at}, then one bit of its checkpoint turned over",),
        failpoints=_term_in(at, shape),
        is_damaged=True,
        must_tell="fell-back",
    )


def _term_in(step: int, shape: Shape) -> tuple[Order, ...]:
    """TERM to the last rank in the middle of a step of the first attempt. All ranks stay in that
    step until the notice was heard: the handover then comes right after it."""
    place: Order = {"at": "step.optimizer", "count": step, "claim": 1}
    return (
        {**place, "do": "term", "rank": shape.world - 1},
        {**place, "do": "pause", "seconds": HEARD_S},
    )


_MAKERS: Mapping[str, Callable[[Shape], Scenario]] = {
    "term": _term,
    "kill-in-save": _kill_in_save,
    "twice": _twice,
    "border": _border,
    "full-disk": _full_disk,
    "damaged": _damaged,
}
NAMES = tuple(_MAKERS)
