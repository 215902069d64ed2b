"""Where a stage stands, as its loop counts it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tasuki.loop.best import Best


@dataclass(slots=True)
class Progress:
    step: int = 0
    samples: int = 0
    best: Best | None = None
    checkpoint: str | None = None
    """The last committed one: the parent of the next."""
    saved_step: int = -1
    loader: dict[str, Any] | None = None
    """Where a loader of the user's own stands; ours stands where the step is."""
