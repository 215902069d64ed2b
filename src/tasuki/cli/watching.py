"""One live line for runs in scratch folders that come and go: what rehearse shows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tasuki.runs.runs import RunFolder
    from tasuki.views.live import LiveView

Values = dict[str, Any]


@contextmanager
def watch_runs(
    retell: Callable[[Values], Values] = lambda run: run,
) -> Iterator[tuple[LiveView, Callable[[Sequence[RunFolder]], None]]]:
    """The view, and what is called at each tick with the runs that are worked on now. `retell`:
    what is said of each, in words of whoever works on it."""
    from tasuki.clock import SystemClock
    from tasuki.commands.status import brief_run
    from tasuki.views.live import LiveView

    seen: list[RunFolder] = []

    def look() -> list[Values]:
        runs = [run for run in seen if run.spec.exists() and run.claims.is_dir()]
        known = [brief_run(run, now=SystemClock.wall()) for run in runs if not run.is_complete()]
        return [retell(run) for run in known]

    with LiveView(look, clock=SystemClock()) as view:

        def tick(runs: Sequence[RunFolder]) -> None:
            seen[:] = runs
            view.tick()

        yield view, tick
        seen.clear()
