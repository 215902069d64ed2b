"""What a loop and its checkpoints are made of, as whoever drives it says: see loop.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from tasuki.runtime.state import State


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

    total_steps: int
    steps_per_epoch: int
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What must be the same at every start, by names that people know."""
    knows_samples: bool = False
    """Do steps tell which samples they used (`end_step(indices=…)`)? Then they can be audited."""
    order: Mapping[str, Any] | None = None
    """From which an audit makes the order of samples again."""
