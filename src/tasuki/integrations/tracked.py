"""Tracked things as a Loop holds them: what `run.track` was given, and where the loader stands.

Adapters have their own (driven.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tasuki.integrations.batches import Batches
from tasuki.loop.settled import settle_buckets
from tasuki.loop.state import State
from tasuki.loop.things import Things


class Tracked:
    """Tracked things, and where the loader stands, as a Loop wants to hold them."""

    def __init__(self, things: Things) -> None:
        self._things = things
        self.batches: Batches | None = None
        self.place: Mapping[str, Any] | None = None
        """Of the loader, as the checkpoint has it."""
        self._finite = {name for name, _ in things.parameters()}

    def capture(self) -> State:
        return self._things.capture()

    def restore(self, state: Mapping[str, Any]) -> None:
        for wrapped in self._things.wrapped:
            settle_buckets(wrapped)
        self._things.restore(state)

    def capture_rank(self) -> Any:
        return self.batches.state() if self.batches is not None else None

    def restore_rank(self, state: Any) -> None:
        self.place = state

    def weights(self) -> Mapping[str, Any] | None:
        model = self._things.model
        return model.state_dict() if model is not None else None

    def must_be_finite(self, name: str) -> bool:
        return name in self._finite
