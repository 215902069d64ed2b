"""The port: what a supervisor asks its scheduler."""

from __future__ import annotations

from typing import Protocol

from tasuki.runs.values import Cause


class Allocation(Protocol):
    """One start of a job, as its scheduler sees it."""

    def remaining_s(self) -> float | None:
        """Seconds until the scheduler ends this start; None: no limit."""
        ...

    def patience_s(self, remaining_s: float | None) -> float:
        """How long to wait before it is asked again whether the end has moved."""
        ...

    @property
    def comes_back(self) -> bool:
        """Did it say, when it was last asked for a cause, that it starts this job again itself?"""
        ...

    def cause_of_notice(self) -> Cause:
        """Why a signal came."""
        ...
