"""How many loader workers, chosen by measurement: `workers: auto`.

Pure: the training loop measures how long steps wait for their samples, this says what to change.
Workers are raised until the wait is gone, until no CPU is left, or until more of them do not help;
workers and threads together never exceed the CPUs. What is fetched never changes, only when.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

GONE = 0.05
"""A wait of up to 5 % of the time counts as none."""
MOST_PREFETCH = 8
HAND_OVER_S = 0.0007
"""What a worker's batch costs the rank: 0.5 ms for small ones, more for large ones."""
_HELPS = 0.9
"""A change helped if the wait fell to 90 % or less."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderSettings:
    """How samples are fetched."""

    workers: int = 0
    prefetch: int = 2
    """Micro-batches that each worker is ahead."""
    context: str = "fork"
    pin: bool = False

    def label(self) -> str:
        if not self.workers:
            return "no workers"
        return f"{self.workers} worker{'s' if self.workers > 1 else ''} × {self.prefetch} ahead"


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """What was measured over some steps."""

    wall_s: float
    """Steps and the wait for their data; no saves, no validation."""
    wait_s: float
    fetch_s: float
    """How long the fetching itself took, summed over workers."""
    batches: int = 0
    """Micro-batches that were fetched."""

    @property
    def fetch_of_batch_s(self) -> float:
        return self.fetch_s / self.batches if self.batches else math.inf

    @property
    def share(self) -> float:
        return self.wait_s / self.wall_s if self.wall_s > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """What to do, and why."""

    settings: LoaderSettings
    reason: str
    is_final: bool
    """Nothing more will be tried."""


class Tempo:
    """Remembers what was tried."""

    def __init__(self, settings: LoaderSettings, *, spare_cpus: int) -> None:
        self.settings = settings
        self._spare = spare_cpus
        self._best: tuple[float, LoaderSettings] | None = None

    def judge(self, window: Window) -> Verdict:
        """The settings to go on with after a window under the present ones."""
        verdict = self._judge(window)
        self.settings = verdict.settings
        return verdict

    def _judge(self, window: Window) -> Verdict:
        now, share = self.settings, window.share
        if share <= GONE:
            return Verdict(now, "the wait is gone" if now.workers else "no wait to speak of", True)
        computing = max(1e-9, window.wall_s - window.wait_s)
        # Against the computing, not the wall: where nearly all is wait, twice the speed hardly
        # changes the share (98 % to 95 %).
        wait = window.wait_s / computing
        if self._best is not None and wait > _HELPS * self._best[0]:
            return Verdict(self._best[1], f"{now.label()} did not help", True)
        self._best = (wait, now)
        if now.workers == 0 and self._spare == 0:
            return Verdict(now, "no CPU is left for loader workers", True)
        if now.workers == 0 and window.fetch_of_batch_s < HAND_OVER_S:
            return Verdict(now, "fetching is quicker than a worker could hand over", True)
        needed = max(1, math.ceil(window.fetch_s / computing))
        if now.workers == 0:
            return self._with_workers(min(needed, self._spare))
        if needed <= now.workers and now.prefetch < MOST_PREFETCH:
            ahead = replace(now, prefetch=min(MOST_PREFETCH, 2 * now.prefetch))
            return Verdict(ahead, "fast enough, but uneven: read further ahead", False)
        if now.workers < self._spare:
            return self._with_workers(min(max(needed, now.workers + 1), self._spare))
        return Verdict(now, f"all {self._spare} CPUs beside the threads are in use", True)

    def _with_workers(self, workers: int) -> Verdict:
        settings = replace(self.settings, workers=workers)
        return Verdict(settings, f"of {self._spare} CPUs beside the threads", False)


def share_cpus(cpus: int, *, is_gpu: bool, workers: int | None) -> tuple[int, int]:
    """(threads, loader workers at the most) of a rank; together never more than its CPUs.

    Never by measurement: the number of threads decides in which order numbers are added, so two
    runs of one spec must agree on it. A GPU needs few threads; where the CPU computes, a quarter
    of its cores is kept for the loader (none of fewer than four). `workers` given: they come first.
    """
    cpus = max(1, cpus)
    if workers is not None:
        workers = min(workers, cpus - 1)
        return cpus - workers, workers
    spare = cpus - max(1, cpus // 4) if is_gpu else cpus // 4
    return cpus - spare, spare
