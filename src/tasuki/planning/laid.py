"""A plan before it has names and a price: what is asked of it, and its jobs as they lie in time.

Pure values. Made by chains.py and packed.py, put together by layout.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tasuki.planning.packing.search import EFFORT
from tasuki.planning.values import Lane, StageWork

Chains = Sequence[Sequence[StageWork]]
"""By experiment, in order: what is left of its stages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What jobs may use, and by when."""

    gpus: int
    """Of a job, on each of its nodes."""
    cpus: int
    limit_s: float | None = None
    cut: str = "stage"
    deadline_s: float | None = None
    """From now."""
    at_once: int | None = None
    """Jobs that can run at the same time; None: as many as there are, as in a queue without end."""
    max_jobs: int | None = None
    """That the site takes of a user."""
    effort: int = EFFORT
    """Of packing one job, in placements."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leg:
    """A part of a job as forecasts see it: how long, how sure, and after what."""

    fixed_s: float
    """Starts and saves."""
    loose_s: float
    """Steps and evaluations: they may take longer or shorter."""
    error: float | None
    """How much longer nine of ten take at the most, as a share; None: nobody knows."""
    after: tuple[int, ...]
    """Legs of the same job, by number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaidJob:
    after: tuple[int, ...]
    """Jobs of the same layout, by number: it must not begin before they have ended."""
    held_by: tuple[int, ...] = ()
    """Jobs whose GPUs it takes over, where there are not enough for all."""
    lanes: tuple[Lane, ...]
    expected_s: float | None
    reserve_s: float
    start_s: float | None
    useful: float | None
    reason: str
    legs: tuple[Leg, ...]

    def moved(self, by: int) -> LaidJob:
        """The same behind so many other jobs."""
        return replace(
            self,
            after=tuple(number + by for number in self.after),
            held_by=tuple(number + by for number in self.held_by),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    jobs: tuple[LaidJob, ...]
    lower_bound_s: float | None
    is_packed: bool
    p10_s: float | None = None
    p90_s: float | None = None
    reasons: tuple[str, ...] = ()

    @property
    def makespan_s(self) -> float | None:
        ends = [
            None if job.start_s is None or job.expected_s is None else job.start_s + job.expected_s
            for job in self.jobs
        ]
        known = [end for end in ends if end is not None]
        return max(known, default=0.0) if len(known) == len(ends) else None

    @property
    def is_optimal(self) -> bool | None:
        """Proved: nothing is shorter. None: not everything is known."""
        makespan_s, bound_s = self.makespan_s, self.lower_bound_s
        if makespan_s is None or bound_s is None:
            return None
        return makespan_s <= bound_s * (1 + 1e-9) + 1e-3

    @property
    def gap(self) -> float | None:
        """How far the makespan is above the bound, as a share of it."""
        makespan_s, bound_s = self.makespan_s, self.lower_bound_s
        if makespan_s is None or not bound_s:
            return None
        return 0.0 if self.is_optimal else makespan_s / bound_s - 1
