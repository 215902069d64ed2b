"""What `tasuki board` shows of the runs of a folder: read when asked, kept while nothing changes.

Fills `views.board.source.Source`. Reads only. A run of which a part is gone or damaged tells the
rest, and what is wrong. Any thread may call.
"""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tasuki.clock import Clock
from tasuki.commands.checkpoint import show_checkpoints
from tasuki.commands.curves import CurveReader
from tasuki.commands.logs import log_paths
from tasuki.commands.queued import NOTHING, Known
from tasuki.commands.status import describe_run
from tasuki.commands.timeline import read_timeline
from tasuki.commands.told_spec import read_environment, read_told_spec
from tasuki.commands.why import tell_story
from tasuki.errors import StoreError, TasukiError, UsageError
from tasuki.runs.atomic import open_plain
from tasuki.runs.find import list_shown
from tasuki.runs.follow import EventFollower
from tasuki.runs.glimpse import glimpse
from tasuki.runs.metrics import metric_files
from tasuki.runs.runs import RunFolder
from tasuki.spec.hiding import hide_in_text, hide_in_texts

Values = dict[str, Any]
_SLICE = 65_536
_MOST_KEPT = 24
"""Runs whose curves stay in memory: 24 bytes for each value of a row."""
_MOST_FACTS = 200
_ALIVE_S = 3.0
"""A process that dies writes nothing: those that run are looked at this often all the same."""
_RESTS = 20
"""Times as long as it took to read a run, until it is read again."""
_ASK_QUEUE_S = 15.0
_ROW = ("experiment", "state", "reason", "stage", "step", "total_steps", "eta_s", "eta_s_p90",
        "loss", "attempts", "preemptions", "goodput", "cost", "last_checkpoint_step",
        "updated_at")  # fmt: skip


@dataclass(slots=True)
class _Row:
    row: Values
    stamp: tuple[Any, ...]
    read_at: float
    took_s: float


class _Kept:
    """What is known of a run that is looked at. Two followers of its events: who reads long curves
    for the first time keeps nobody waiting who asks for the rest."""

    def __init__(self, run: RunFolder) -> None:
        self._curves = CurveReader(run)
        self._events = EventFollower(run)
        self._reading, self._following = threading.Lock(), threading.Lock()

    @contextmanager
    def curves(self) -> Iterator[CurveReader]:
        """As they are now; one at a time."""
        with self._reading:
            self._curves.look()
            yield self._curves

    @contextmanager
    def events(self) -> Iterator[EventFollower]:
        with self._following:
            self._events.look()
            self._events.machine.clear()  # the curves have them
            yield self._events


@dataclass(slots=True)
class RunsSource:
    """The runs of one folder."""

    runs: Path
    clock: Clock
    ask_queue: Callable[[], Known] = lambda: NOTHING
    _rows: dict[str, _Row] = field(default_factory=dict)
    _kept: OrderedDict[str, _Kept] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _known: Known = NOTHING
    _asked_at: float = float("-inf")

    def names(self) -> list[str]:
        return [run.name for run in list_shown(self.runs)]

    # -- the list ---------------------------------------------------------------------------------

    def summary(self, name: str) -> Values:
        run, now = self._run(name), time.monotonic()
        stamp = _stamp(run)
        old = self._rows.get(name)
        if old is not None:
            is_new = stamp != old.stamp or (
                old.row["state"] in ("running", "waiting") and now - old.read_at > _ALIVE_S
            )
            if not is_new or now - old.read_at < _RESTS * old.took_s:
                return old.row
        row = self._describe(run)
        self._rows[name] = _Row(row, stamp, now, time.monotonic() - now)
        return row

    def _describe(self, run: RunFolder) -> Values:
        try:
            status = describe_run(run, now=self.clock.wall(), known=self._queue())
        except StoreError as error:
            return {
                **dict.fromkeys(_ROW),
                "experiment": run.name,
                "reason": hide_in_text(f"cannot be read: {error.message}"),
                "progress": None,
                "spark": [],
                "events_bytes": 0,
            }
        return {
            **hide_in_texts({key: status.get(key) for key in _ROW}),
            "progress": _progress(status),
            "spark": [float(f"{value:.4g}") for value in _outline(run)],
            "events_bytes": sum(size for _, size in _sizes(run.events)),
        }

    def _queue(self) -> Known:
        """What Slurm said last; it is not asked more often than `status` does."""
        if time.monotonic() - self._asked_at > _ASK_QUEUE_S:
            self._asked_at = time.monotonic()
            try:
                self._known = self.ask_queue()
            except TasukiError:
                self._known = NOTHING
        return self._known

    # -- one run ----------------------------------------------------------------------------------

    def detail(self, name: str) -> Values:
        run, now = self._run(name), self.clock.wall()
        problems: list[str] = []
        with self._keep(run).events() as events:
            own = {run.name: events}
            why = _or_problem(problems, lambda: tell_story(run, events, now=now))
            timeline = _or_problem(
                problems, lambda: read_timeline(self.runs, [run], now=now, followers=own)
            )
        problems += (why or {}).get("notes", [])
        found = _or_problem(
            problems, lambda: show_checkpoints(str(run.path), runs=self.runs, now=now)
        )
        status = _or_problem(problems, lambda: describe_run(run, now=now, known=self._queue()))
        spec = _or_problem(problems, lambda: read_told_spec(run))
        environment = _or_problem(problems, lambda: read_environment(run))
        told = {"status": status, "why": why, "problems": list(dict.fromkeys(problems))}
        return {
            "experiment": run.name,
            "now": now,
            **hide_in_texts(told),
            "timeline": timeline,
            "checkpoints": found["runs"][0] if found else None,
            "spec": spec,
            "environment": environment,
        }

    def curves(
        self,
        name: str,
        *,
        points: int,
        first: float | None = None,
        last: float | None = None,
        beyond: Mapping[tuple[str, str], float] | None = None,
    ) -> Values:
        with self._keep(self._run(name)).curves() as reader:
            since = None if first is None else int(first) - 1
            until = None if last is None else int(last)
            known = {of: int(step) for of, step in (beyond or {}).items()}
            found = reader.read(points=points, since=since, until=until, beyond=known)
            return {**found, "live": reader.live()}

    def events(self, name: str, *, most: int) -> Values:
        with self._keep(self._run(name)).events() as follower:
            events = follower.events
        shown = [_short(hide_in_texts(event)) for event in events[-most:]]
        return {"total": len(events), "events": shown}

    def log(
        self, name: str, *, file: str | None, start: int | None, end: int | None = None
    ) -> Values:
        run = self._run(name)
        found = {path.name: path for path in _logs(run)}
        files = [{"file": one, "words": _log_words(one)} for one in found]
        if file is None:
            file = next((one for one in found if one.endswith(".log")), None) or next(
                iter(found), None
            )
        if file is None:
            return {"files": [], "file": None, "start": 0, "end": 0, "size": 0, "text": ""}
        if file not in found:
            raise UsageError(f"run `{name}` has no log of that name", hint="choose one of its list")
        return {"files": files, "file": file, **_slice(found[file], start, end)}

    # -- what is kept -----------------------------------------------------------------------------

    def _run(self, name: str) -> RunFolder:
        return RunFolder(self.runs / name)

    def _keep(self, run: RunFolder) -> _Kept:
        """Those that nobody asked for lately are forgotten."""
        with self._lock:
            if run.name not in self._kept:
                self._kept[run.name] = _Kept(run)
            self._kept.move_to_end(run.name)
            while len(self._kept) > _MOST_KEPT:
                self._kept.popitem(last=False)
            return self._kept[run.name]


def _or_problem(problems: list[str], read: Callable[[], Values]) -> Values | None:
    try:
        return read()
    except (TasukiError, OSError) as error:
        problems.append(str(error))
        return None


def _stamp(run: RunFolder) -> tuple[Any, ...]:
    """Changes whenever somebody wrote something that a line of the list tells."""
    return (
        _sizes(run.events),
        _sizes(run.metrics),
        _changed(run.control),
        _changed(run.claims),
        _changed(run.stages),
        _changed(run.checkpoints),
        _changed(run.training_state),
        _changed(run.spec),
        run.marker.exists(),
    )


def _sizes(folder: Path) -> tuple[tuple[str, int], ...]:
    try:
        with os.scandir(folder) as entries:
            return tuple(sorted((entry.name, entry.stat().st_size) for entry in entries))
    except OSError:
        return ()


def _changed(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _progress(status: Values) -> float:
    """By stages, and by the steps of the one that runs."""
    if status["state"] == "complete":
        return 1.0
    stages = status["stages"]
    trained = [stage["name"] for stage in stages if stage["is_trained"]]
    inside = 0.0
    if status["step"] and status["total_steps"] and status["stage"] not in trained:
        inside = min(1.0, status["step"] / status["total_steps"])
    return round((len(trained) + inside) / max(1, len(stages)), 4)


def _outline(run: RunFolder) -> list[float]:
    try:
        return glimpse(list(metric_files(run).values()))
    except TasukiError:
        return []


def _short(event: Values) -> Values:
    """Long values of an event are cut: a list of names may be endless."""
    return {key: _cut(value) for key, value in event.items()}


def _cut(value: Any) -> Any:
    text = value if isinstance(value, str) else None
    if isinstance(value, dict | list):
        import json

        text = json.dumps(value, ensure_ascii=False, default=str)
        if len(text) <= _MOST_FACTS:
            return value
    return f"{text[:_MOST_FACTS]} …" if text is not None and len(text) > _MOST_FACTS else value


# -- logs ------------------------------------------------------------------------------------------


def _logs(run: RunFolder) -> list[Path]:
    """The newest attempt first; plain files alone, for anything else may wait for ever."""
    paths = [*log_paths(run, errors=False), *log_paths(run, errors=True)]
    return sorted(
        (path for path in paths if path.is_file()), key=lambda p: _log_order(p.name), reverse=True
    )


def _log_order(name: str) -> tuple[int, int, int]:
    attempt, rank, is_output = _log_parts(name)
    return attempt, is_output, -rank


def _log_parts(name: str) -> tuple[int, int, int]:
    """(attempt, rank, is it output) of `<job>.<claim>[.<rank>].log`."""
    stem, _, ending = name.rpartition(".")
    numbers = [int(word) for word in stem.rsplit(".", 2)[1:] if word.isdecimal()]
    attempt, rank = (numbers[-2], numbers[-1]) if len(numbers) == 2 else (numbers[-1], 0)
    return attempt, rank, int(ending == "log")


def _log_words(name: str) -> str:
    attempt, rank, is_output = _log_parts(name)
    of_rank = f", rank {rank}" if rank else ""
    return f"attempt {attempt}{of_rank}: {'output' if is_output else 'errors'}"


def _slice(path: Path, start: int | None, end: int | None) -> Values:
    """At most `_SLICE` bytes, cut between lines at its beginning and between characters."""
    try:
        with open_plain(path) as file:
            size = file.seek(0, os.SEEK_END)
            stop = size if end is None else max(0, min(end, size))
            begin = max(0, stop - _SLICE) if start is None else max(0, min(start, stop))
            if end is not None:
                begin = max(begin, stop - _SLICE)
            file.seek(begin)
            data = file.read(min(_SLICE, stop - begin))
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror}") from None
    if start is None and begin > 0 and b"\n" in data:
        skipped = data.index(b"\n") + 1
        begin, data = begin + skipped, data[skipped:]
    data = data[: len(data) - _torn(data)]
    text = data.decode(errors="replace")
    return {"start": begin, "end": begin + len(data), "size": size, "text": text}


def _torn(data: bytes) -> int:
    """How many bytes at the end are the beginning of a character."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte & 0b1100_0000 == 0b1000_0000:
            continue
        needs = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
        return back if needs > back else 0
    return 0
