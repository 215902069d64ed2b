"""`tasuki logs`: what a run's workers printed, over all attempts, oldest first."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from tasuki.actions.status import state_of
from tasuki.clock import Clock
from tasuki.store.runs import RunFolder

_NAME = re.compile(r".+?\.(\d+)(?:\.(\d+))?\.(log|err)")
_LOOK_EVERY_S = 0.3
_COMES_BACK_S = 3.0
"""A job that was requeued starts again within this time; else nobody works on the run."""


def log_paths(run: RunFolder, *, errors: bool, attempt: int | None = None) -> list[Path]:
    """The files, by attempt and rank; errors are kept apart from output."""
    wanted = "err" if errors else "log"
    found = []
    for name in os.listdir(run.logs) if run.logs.is_dir() else []:
        match = _NAME.fullmatch(name)
        if match and match[3] == wanted and attempt in (None, int(match[1])):
            found.append((int(match[1]), int(match[2] or 0), run.logs / name))
    return [path for *_, path in sorted(found)]


def read_logs(
    run: RunFolder, *, errors: bool = False, attempt: int | None = None
) -> Iterator[tuple[str, str]]:
    """(file name, text) of each log."""
    for path in log_paths(run, errors=errors, attempt=attempt):
        text = path.read_text(errors="replace")
        if text:
            yield path.name, text


def follow_logs(
    run: RunFolder,
    *,
    clock: Clock,
    errors: bool = False,
    attempt: int | None = None,
    is_queued: Callable[[], bool] = lambda: False,
) -> Iterator[tuple[str, str]]:
    """As `read_logs`, and then whatever is added, until the run works no more: neither now nor,
    as `is_queued` tells, in a job that waits."""
    seen: dict[Path, int] = {}
    handed_over_at: float | None = None
    while True:
        state, _ = state_of(run, now=clock.wall())
        if state != "handed-over":
            handed_over_at = None
        elif handed_over_at is None:
            handed_over_at = clock.monotonic()
        is_coming_back = handed_over_at is not None and (
            clock.monotonic() - handed_over_at < _COMES_BACK_S
        )
        is_running = state in ("running", "waiting") or is_coming_back
        is_running = is_running or (state == "handed-over" and is_queued())
        for path in log_paths(run, errors=errors, attempt=attempt):
            with path.open("rb") as file:
                file.seek(seen.get(path, 0))
                data = file.read()
            if data:
                seen[path] = seen.get(path, 0) + len(data)
                yield path.name, data.decode(errors="replace")
        if not is_running:
            return
        clock.sleep(_LOOK_EVERY_S)
