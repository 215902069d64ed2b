"""What a loop and its checkpoints are made of, as whoever drives it says: see loop.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from tasuki.errors import DataError
from tasuki.loop.state import State


class HandedOver(SystemExit):
    """All is saved, and this process is to leave with exit code 75. Let it through."""


class Holds(Protocol):
    """What a loop's checkpoints hold beside its position and its random numbers."""

    def capture(self) -> State:
        """What all ranks share; asked on rank 0. Tensors may be live ones."""
        ...

    def restore(self, state: Mapping[str, Any]) -> None: ...
    def capture_rank(self) -> Any:
        """What is this rank's own."""
        ...

    def restore_rank(self, state: Any) -> None:
        """None: there is none, as the number of ranks has changed."""
        ...

    def weights(self) -> Mapping[str, Any] | None:
        """Of the model, for `weights.safetensors`; None: there is none."""
        ...

    def must_be_finite(self, name: str) -> bool:
        """Of tensors in the shared state, by name (`model.weight`)."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """How far a loop goes."""

    total_steps: int | None
    """None: nobody knows; whoever drives the loop ends it."""
    steps_per_epoch: int
    counts_epochs: bool = True
    """Was its length asked for in epochs? Then it is told so."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What must be the same at every start, by names that people know."""
    knows_samples: bool = False
    """Do steps tell which samples they used (`end_step(indices=…)`)? Then they can be checked."""
    last_boundary: int | None = None
    """Where the last step begins: saved there too, so that it can be done once more (replay.py)."""
    order: Mapping[str, Any] | None = None
    """From which `tasuki verify samples` builds the order again."""

    def is_before_end(self, step: int) -> bool:
        return self.total_steps is None or step < self.total_steps

    def of_total(self) -> str:
        """Behind a step: ` of 5,000`."""
        return "" if self.total_steps is None else f" of {self.total_steps}"


_ANOTHER = "or begin another run: TASUKI_NAME=other before the same command"


def refuse_changed(
    now: Mapping[str, Any], before: Mapping[str, Any], course: Course, *, run: str
) -> None:
    """Of what must be the same at every start: how far the loop goes last, as the rest explains."""
    for key, value in now.items():
        if key != "total_steps" and before.get(key) != value:
            raise DataError(
                f"`{key}` changed since the last checkpoint: {before.get(key)} before, {value} now",
                hint=f"put it back as it was, {_ANOTHER}",
            )
    asked, begun = now["total_steps"], before["total_steps"]
    if asked != begun:
        length = _length(begun, course)
        raise DataError(
            f"the loop asks for {_length(asked, course)}, and run `{run}` was begun with {length}",
            hint=f"ask for {length.partition(' (')[0]} again, and it goes on from its last "
            f"checkpoint; {_ANOTHER}",
        )


def _length(steps: int | None, course: Course) -> str:
    """In epochs, where it was asked for so: nobody has written a number of steps then."""
    if steps is None:
        return "no end"
    epochs, rest = divmod(steps, course.steps_per_epoch)
    if rest or not course.counts_epochs:
        return f"{steps:,} step{'s' if steps != 1 else ''}"
    return f"{epochs:,} epoch{'s' if epochs != 1 else ''} ({steps:,} steps)"
