"""`tasuki logs`: what a run's workers printed, over all attempts, oldest first."""

from __future__ import annotations

import os
import re
from codecs import getincrementaldecoder
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from tasuki.clock import Clock
from tasuki.commands.status import is_alone, state_of
from tasuki.errors import StoreError, UsageError
from tasuki.runs.atomic import open_plain, translated
from tasuki.runs.attempts import live_runner, read_attempt_end
from tasuki.runs.claims import highest_claim, list_claims
from tasuki.runs.control import Word, last_said
from tasuki.runs.events import read_events
from tasuki.runs.runs import RunFolder

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


def _to_nobody(words: str) -> None:
    """For who does not want to know what could not be read."""


def read_logs(
    run: RunFolder,
    *,
    errors: bool = False,
    attempt: int | None = None,
    tell: Callable[[str], None] = _to_nobody,
) -> Iterator[tuple[str, str]]:
    """(file name, text) of each log; of a long one part after part. What is no log is told of."""
    for path in log_paths(run, errors=errors, attempt=attempt):
        growing = _Growing(path, tell)
        while text := growing.read():
            yield path.name, text


def refuse_unknown(run: RunFolder, attempt: int | None) -> None:
    """A number that no attempt has is a slip of a person's."""
    known = list_claims(run)
    if attempt is not None and attempt not in known:
        raise UsageError(
            f"run `{run.name}` has no attempt {attempt}",
            hint=f"there are: {', '.join(map(str, known))}" if known else "it has not begun yet",
        )


def why_nothing(run: RunFolder, *, errors: bool, attempt: int | None) -> str:
    """In words why no log has a line: of a run whose logs somebody deleted, that."""
    if told := where_output_went(run, attempt=attempt):
        return told
    is_said = any(event["kind"] == "worker-started" for event in read_events(run))
    if not run.logs.is_dir() and is_said:
        return f"run `{run.name}` has no logs any more: {run.logs} is gone"
    return f"run `{run.name}` has printed {'no errors' if errors else 'nothing'} so far"


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
    tell: Callable[[str], None] = _to_nobody,
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
            growing = files.setdefault(path, _Growing(path, tell))
            while text := growing.read():
                yield path.name, text
        if is_over:
            return
        clock.sleep(_LOOK_EVERY_S)


def _goes_on(
    run: RunFolder, now: float, attempt: int | None, is_queued: Callable[[], bool]
) -> bool:
    """Does somebody work on it, or will soon?"""
    if attempt is not None and (
        # One that died without a word has no end: whoever came after it tells of that.
        attempt < highest_claim(run) or read_attempt_end(run, attempt) is not None
    ):
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
    """One log, read as it grows: a character may be written in two parts. One that cannot be read
    is told of once, and hides no other."""

    def __init__(self, path: Path, tell: Callable[[str], None]) -> None:
        self._path, self._tell = path, tell
        self._seen = 0
        self._is_given_up = False
        self._decoder = getincrementaldecoder("utf-8")(errors="replace")

    def read(self) -> str:
        if self._is_given_up:
            return ""
        try:
            data = self._read_on()
        except StoreError as error:
            self._is_given_up = True
            self._tell(error.message)
            return ""
        self._seen += len(data)
        return self._decoder.decode(data)

    def _read_on(self) -> bytes:
        with translated(self._path):
            try:
                with open_plain(self._path) as file:
                    file.seek(self._seen)
                    return file.read(_PART_BYTES)
            except FileNotFoundError:  # somebody deletes the run meanwhile
                return b""
