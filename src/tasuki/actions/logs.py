"""`tasuki logs`: what a run's workers printed, over all attempts, oldest first."""

from __future__ import annotations

import os
import re
from codecs import getincrementaldecoder
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from tasuki.actions.status import is_alone, state_of
from tasuki.clock import Clock
from tasuki.store.atomic import open_plain, translated
from tasuki.store.attempts import live_runner, read_attempt_end
from tasuki.store.claims import highest_claim
from tasuki.store.control import Word, last_said
from tasuki.store.runs import RunFolder

_NAME = re.compile(r".+?\.(\d+)(?:\.(\d+))?\.(log|err)")
_LOOK_EVERY_S = 0.3
_PART_BYTES = 4 << 20
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
    """(file name, text) of each log; of a long one part after part."""
    for path in log_paths(run, errors=errors, attempt=attempt):
        growing = _Growing(path)
        while text := growing.read():
            yield path.name, text


def where_output_went(run: RunFolder, *, attempt: int | None = None) -> str:
    """Of a script by itself only what tasuki said is kept; empty: a supervisor kept it all."""
    claim = attempt or highest_claim(run)
    if not claim or not is_alone(run, claim):
        return ""
    return (
        "the script ran by itself: what it printed went to its terminal, and only what tasuki said "
        f"is kept (`tasuki logs {run.name}`)"
    )


def follow_logs(
    run: RunFolder,
    *,
    clock: Clock,
    errors: bool = False,
    attempt: int | None = None,
    is_queued: Callable[[], bool] = lambda: False,
) -> Iterator[tuple[str, str]]:
    """As `read_logs`, and then whatever is added by this attempt and later ones, in this job and
    others, until the run works no more: neither now nor, as `is_queued` tells, in a job that
    waits. Of one `attempt` until that is over."""
    files: dict[Path, _Growing] = {}
    idle_since: float | None = None
    while True:
        goes_on = _goes_on(run, clock.wall(), attempt, is_queued)
        idle_since = None if goes_on else (idle_since or clock.monotonic())
        # Asked before the files are read: what was written before the end is not missed.
        is_over = idle_since is not None and (
            clock.monotonic() - idle_since >= (0.0 if attempt is not None else _patience_s(run))
        )
        for path in log_paths(run, errors=errors, attempt=attempt):
            growing = files.setdefault(path, _Growing(path))
            while text := growing.read():
                yield path.name, text
        if is_over:
            return
        clock.sleep(_LOOK_EVERY_S)


def _goes_on(
    run: RunFolder, now: float, attempt: int | None, is_queued: Callable[[], bool]
) -> bool:
    """Does somebody work on it, or will soon?"""
    if attempt is not None and read_attempt_end(run, attempt) is not None:
        return False
    state, _ = state_of(run, now=now)
    if state == "running":
        return True
    if state not in ("waiting", "handed-over"):
        return False
    # Before its first attempt it is waited for, whoever is to start it.
    return highest_claim(run) == 0 or live_runner(run) is not None or is_queued()


def _patience_s(run: RunFolder) -> float:
    """A job that was requeued starts again within some seconds; who was told to stop does not."""
    said = last_said(run)
    is_stopped = run.is_complete() or (said is not None and said.word is not Word.LIFT)
    return 0.0 if is_stopped else _COMES_BACK_S


def join_logs(parts: Iterable[tuple[str, str]]) -> dict[str, str]:
    """The whole text of each file."""
    texts: dict[str, list[str]] = {}
    for name, text in parts:
        texts.setdefault(name, []).append(text)
    return {name: "".join(some) for name, some in texts.items()}


class _Growing:
    """One log, read as it grows: a character may be written in two parts."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen = 0
        self._decoder = getincrementaldecoder("utf-8")(errors="replace")

    def read(self) -> str:
        with translated(self._path), suppress(FileNotFoundError):
            if self._path.stat().st_size <= self._seen:
                return ""
            with open_plain(self._path) as file:
                file.seek(self._seen)
                data = file.read(_PART_BYTES)
            self._seen += len(data)
            return self._decoder.decode(data)
        return ""
