"""Watch how long steps wait for their data, say so, and change the loader where that helps.

Looks at the stopwatch about once a second in a stage's first minute, and then every ten. What is
decided (data/tempo.py) goes to the log and the events, and an attempt that resumes begins with it.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

from tasuki.data.fetch import Fetcher
from tasuki.data.foreign import ForeignLoader
from tasuki.data.loader import Loader
from tasuki.data.tempo import GONE, LoaderSettings, Tempo, Verdict, Window
from tasuki.runs.events import read_events
from tasuki.spec.resolved import ResolvedLoader
from tasuki.train.guidance import Loading
from tasuki.train.task import Task

_SHORTEST_S = 1.0
_FEWEST_STEPS = 5
_BAD_WINDOWS = 2
_WARM_UP_STEPS = 3
_HEAVY_PICKLE = 64 << 20
"""A spawned worker gets a copy of the data set; above this a fork, which shares it, is better."""


def first_settings(task: Task, fetcher: Fetcher) -> LoaderSettings:
    """As the spec says; what it leaves open as the last attempt found it, else to begin with."""
    options = task.stage.loader
    known = _last_decision(task) if options.workers == "auto" else None
    workers = min(known["workers"], task.spare_cpus) if known else 0
    is_default = options.prefetch == ResolvedLoader().prefetch
    if isinstance(options.workers, int):
        workers = min(options.workers, task.spare_cpus)
        if workers < options.workers:
            task.say(
                f"WARNING: `loader.workers: {options.workers}` is cut to {workers}: workers and "
                f"threads ({task.threads}) share {task.threads + task.spare_cpus} CPUs"
            )
    return LoaderSettings(
        workers=workers,
        prefetch=known["prefetch"] if known and is_default else options.prefetch,
        context=_context(task, fetcher) if options.context == "auto" else options.context,
        pin=task.device.type == "cuda" if options.pin == "auto" else options.pin,
    )


def _context(task: Task, fetcher: Fetcher) -> str:
    """Fork starts in milliseconds and shares the data. With CUDA at work in this process a spawned
    worker is safer, if the data can be handed to it."""
    if task.device.type != "cuda":
        return "fork"
    try:
        pickle.dump(fetcher, _Bounded())
    except Exception:  # whatever the user's data raise, or too much of them
        return "fork"
    return "spawn"


class _Bounded(io.RawIOBase):
    """Takes so much and no more: data of any size are weighed without a copy."""

    def __init__(self) -> None:
        self._room = _HEAVY_PICKLE

    def write(self, data: Any) -> int:
        self._room -= len(memoryview(data).cast("B"))
        if self._room < 0:
            raise OverflowError
        return len(data)


def _last_decision(task: Task) -> dict[str, Any] | None:
    told = [
        event
        for event in read_events(task.run)
        if event.get("kind") == "loader" and event.get("stage") == task.stage.name
    ]
    return told[-1] if told else None


class Pace:
    """The wait of one stage's steps."""

    def __init__(self, task: Task, loader: Loader | ForeignLoader) -> None:
        self._task, self._loader = task, loader
        self._tempo = Tempo(loader.settings, spare_cpus=task.spare_cpus)
        is_ours = isinstance(loader, Loader)
        self._may_change = is_ours and task.stage.loader.workers == "auto"
        self._fixed = "as the spec says" if is_ours else "the recipe's own loader"
        self._is_settled = False
        self._was_gone = False
        """Settled because there was no wait, not because nothing helps."""
        self._reason = ""
        self._bad_windows = 0
        self._steps = -_WARM_UP_STEPS
        self._since = self._reading()

    def count_step(self) -> None:
        self._steps += 1
        if self._steps == 0:  # the first steps allocate, compile and open files
            self._since = self._reading()

    def look(self) -> None:
        """At a step boundary: judge the window, if it is long enough."""
        window = self._window()
        if self._steps < _FEWEST_STEPS or window.wall_s < _SHORTEST_S:
            return
        self._steps = -_WARM_UP_STEPS
        if self._is_settled:
            self._look_again(window)
        else:
            self._judge(window)

    def loading(self) -> Loading:
        """How samples come now, for a profile."""
        return Loading(
            workers=self._loader.settings.workers,
            is_auto=self._may_change,
            is_settled=self._is_settled or not self._may_change or not self._task.spare_cpus,
            is_own=not isinstance(self._loader, Loader),
            spare_cpus=self._task.spare_cpus,
            cpus=self._task.threads + self._task.spare_cpus,
            reason=self._reason,
        )

    def _look_again(self, window: Window) -> None:
        """Larger samples, or a colder disk, may bring the wait back."""
        self._bad_windows = self._bad_windows + 1 if window.share > GONE else 0
        if self._was_gone and self._bad_windows >= _BAD_WINDOWS:
            self._tempo = Tempo(self._loader.settings, spare_cpus=self._task.spare_cpus)
            self._judge(window)

    def _judge(self, window: Window) -> None:
        before = self._loader.settings
        verdict = self._tempo.judge(window)
        if not self._may_change:
            verdict = Verdict(before, self._fixed, True)
        self._say(window, before, verdict)
        if verdict.settings != before:
            self._loader.retune(verdict.settings)
        self._reason = verdict.reason
        self._is_settled, self._was_gone = verdict.is_final, window.share <= GONE
        self._bad_windows = 0

    def _reading(self) -> Window:
        parts = self._task.stopwatch.parts
        wait = parts.get("data_wait", 0.0)
        return Window(
            wall_s=wait + parts.get("step", 0.0),
            wait_s=wait,
            fetch_s=self._loader.fetch_s,
            batches=self._loader.batches,
        )

    def _window(self) -> Window:
        now, then = self._reading(), self._since
        return Window(
            wall_s=now.wall_s - then.wall_s,
            wait_s=now.wait_s - then.wait_s,
            fetch_s=now.fetch_s - then.fetch_s,
            batches=now.batches - then.batches,
        )

    def _say(self, window: Window, before: LoaderSettings, verdict: Verdict) -> None:
        change = before.label()
        if verdict.settings != before:
            change = f"{before.label()} → {verdict.settings.label()}"
        self._task.say(
            f"Data: steps wait {window.share:.1%} of their time for samples; {change} "
            f"({verdict.reason})"
        )
        self._task.event(
            "loader",
            stage=self._task.stage.name,
            wait=round(window.share, 4),
            workers=verdict.settings.workers,
            prefetch=verdict.settings.prefetch,
            reason=verdict.reason,
        )
