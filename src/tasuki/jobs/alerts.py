"""Alerts: the user's own command is told what became of a run, as JSON on its stdin.

At most once for each outcome, whatever is killed or requeued: the payload is written first, under a
name that only one can make (`alerts/<outcome>….json`), and only who made it starts the command. A
kill between the two loses an alert; the other way round people, and what their scripts start, would
get it twice. A kill before it loses nothing: the outcome itself is in the run's folder, and whoever
of the job comes next (another start, `--after`) finds that nobody was told.

Beside the job, never in its way: nobody waits for a command while ranks run, at a handover for some
seconds at most, and after 30 s it is killed with all it has started.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tasuki.clock import Clock
from tasuki.errors import TasukiError
from tasuki.jobs.job import JobOrder
from tasuki.jobs.payload import Happened, make_payload
from tasuki.runs.atomic import (
    FILE_MODE,
    create_exclusive,
    list_folder,
    make_folder,
    read_json,
    to_json,
)
from tasuki.runs.claims import highest_claim
from tasuki.runs.control import Word, is_wanted, last_said
from tasuki.runs.events import EventLog
from tasuki.runs.lines import spelled
from tasuki.runs.runs import RunFolder
from tasuki.runs.standing import PlanBook, number_in, read_standing
from tasuki.signals import SignalPipe

LIMIT_S = 30.0
"""How long a command may take."""
AT_HANDOVER_S = 3.0
"""And how much of it where the next attempt is to begin."""
_LOOK_EVERY_S = 0.02
_SELDOM_S = 60.0
"""Between two looks at a deadline, at most; a hundredth of the time to it where that is less."""
_OFTEN_S = 1.0
_STOPPED = {Word.HOLD: "held", Word.FAIL: "failed"}


@dataclass(slots=True)
class _Told:
    """A command that was started."""

    run: RunFolder
    outcome: str
    log: Path
    process: subprocess.Popen[bytes]
    until: float
    """On the monotonic clock."""


@dataclass(slots=True)
class Alerts:
    """Of one start of a job, for all its runs."""

    job: JobOrder
    environment: Mapping[str, str]
    clock: Clock
    _told: list[_Told] = field(default_factory=list)
    _plans: PlanBook = field(init=False)
    _look_at: dict[RunFolder, float] = field(default_factory=dict)
    """Runs that have a deadline to watch: when to look, on the monotonic clock."""

    def __post_init__(self) -> None:
        self._plans = PlanBook(self.job.folder.runs)

    def begin(self) -> None:
        """Of outcomes of which a killed start could tell nobody any more."""
        for run in _runs_of(self.job):
            self.tell_due(run)
            with _harmless():
                spec = read_json(run.spec)
                if "deadline-risk" in (spec.get("on") or {}) and number_in(spec, "deadline_at"):
                    self._look_at[run] = self.clock.monotonic() + _OFTEN_S

    def tell_due(self, run: RunFolder) -> None:
        """Tell of the run's end, if it has come and nobody was told. Never raises."""
        with _harmless():
            happened = _end_of(run)
            if happened is not None:
                self._tell(run, happened)

    def watch_deadlines(self, now: float) -> None:
        """Now and then. Never raises."""
        for run in [run for run, look_at in self._look_at.items() if look_at <= now]:
            with _harmless():
                self._watch_deadline(run, now)

    def _watch_deadline(self, run: RunFolder, now: float) -> None:
        from tasuki.planning.risk import left_of_run, look_at_deadline

        self._look_at[run] = now + _SELDOM_S  # also if nothing can be read just now
        wall, spec = self.clock.wall(), read_json(run.spec)
        standing = read_standing(run, plans=self._plans, spec=spec)
        if standing.deadline_at is None or not is_wanted(run):
            return
        left = left_of_run(standing, now=wall)
        risk = look_at_deadline(standing.deadline_at, now=wall, left=left)
        if risk.is_danger:
            mark = f"deadline-risk.{standing.deadline_at:.0f}"
            state = "running" if standing.has_begun else "waiting"
            reason = "its deadline is in danger"
            happened = Happened("deadline-risk", mark, state, reason, risk=risk, left=left)
            self._tell(run, happened)
            del self._look_at[run]
            return
        ahead = (standing.deadline_at - wall) / 100
        self._look_at[run] = now + max(_OFTEN_S, min(_SELDOM_S, ahead))

    def _tell(self, run: RunFolder, happened: Happened) -> None:
        words = (read_json(run.spec).get("on") or {}).get(happened.outcome)
        if not words:
            return
        value = make_payload(run, happened, job=self.job, plans=self._plans, now=self.clock.wall())
        make_folder(run.alerts)
        payload = run.alerts / f"{happened.mark}.json"
        if create_exclusive(payload, to_json(spelled(value))):
            self._start(run, happened.outcome, [str(word) for word in words], payload)

    def _start(self, run: RunFolder, outcome: str, words: list[str], payload: Path) -> None:
        make_folder(run.logs)
        log = run.logs / f"{self.job.folder.name}.{highest_claim(run)}.alerts.txt"
        fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, FILE_MODE)
        try:
            with payload.open("rb") as stdin:
                process = subprocess.Popen(
                    self._program(words),
                    cwd=self.job.cwd,
                    env=self._environment(run, outcome),
                    stdin=stdin,
                    stdout=fd,
                    stderr=fd,
                    start_new_session=True,  # to be killed with all it has started
                )
        except OSError as error:
            self._warn(run, outcome, f"cannot be started: {error.strerror}", log)
            return
        finally:
            os.close(fd)
        until = self.clock.monotonic() + LIMIT_S
        self._told.append(_Told(run, outcome, log, process, until))

    def _program(self, words: list[str]) -> list[str]:
        """As of a stage's command, but outside of any container: mail and curl are on the node."""
        from tasuki.jobs.programs import PYTHON, find_program

        if words[0] == PYTHON:
            return [sys.executable if self.job.container else self.job.python, *words[1:]]
        found = find_program(words[0], self.job.cwd, self.job.python, self.environment)
        return [found or words[0], *words[1:]]

    def _environment(self, run: RunFolder, outcome: str) -> dict[str, str]:
        from tasuki.jobs.ranks import NEVER_PASSED

        own = {key: value for key, value in self.environment.items() if key not in NEVER_PASSED}
        told = {"TASUKI_RUN": str(run.path), "TASUKI_OUTCOME": outcome}
        return own | told | {"CUDA_VISIBLE_DEVICES": ""}  # no GPU is its business

    def look(self, now: float) -> None:
        """Who has ended, who takes too long."""
        for one in list(self._told):
            status = one.process.poll()
            if status is None and now < one.until:
                continue
            self._told.remove(one)
            if status is None:
                _kill(one.process)
                self._warn(one.run, one.outcome, "took too long and was killed", one.log)
            elif status:
                self._warn(one.run, one.outcome, f"ended with {status}", one.log)

    def wait(self, within_s: float) -> None:
        """Until all have ended; who takes longer is killed."""
        now = self.clock.monotonic()
        until = now + max(0.0, within_s)
        for one in self._told:
            one.until = min(one.until, until)
        while self._told:
            self.look(self.clock.monotonic())
            if self._told:
                self.clock.sleep(_LOOK_EVERY_S)

    def _warn(self, run: RunFolder, outcome: str, what: str, log: Path) -> None:
        """Without its words, which are nobody else's business."""
        with _harmless():
            events = EventLog(run, claim=highest_claim(run), node=0, who="alerts", clock=self.clock)
            events.add("warning", text=f"the command of `on.{outcome}` {what}; see {log}")
            events.close()


def tell_all(job: JobOrder, *, clock: Clock, environment: Mapping[str, str]) -> None:
    """For who has no loop: tell of every end that nobody was told of, and wait for it."""
    alerts = Alerts(job, environment, clock)
    signals = SignalPipe()  # the commands are to hear signals, and we are not to die of them
    signals.install()
    try:
        for run in _runs_of(job):
            alerts.tell_due(run)
        alerts.wait(LIMIT_S)
    finally:
        signals.restore()


def _runs_of(job: JobOrder) -> Iterable[RunFolder]:
    return dict.fromkeys(item.run for lane in job.lanes for item in lane.items)


def _end_of(run: RunFolder) -> Happened | None:
    """Complete, or waiting for a person; each word of that kind is an end of its own."""
    if run.is_complete():
        return Happened("complete", "complete", "complete", "")
    said = last_said(run)
    if said is None or said.word not in _STOPPED:
        return None
    number = len(list_folder(run.control, "*.json"))
    state = _STOPPED[said.word]
    return Happened("held", f"held.{number:06d}", state, said.reason, hint=said.hint)


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@contextlib.contextmanager
def _harmless() -> Iterator[None]:
    """Nothing that has to do with an alert may end a job."""
    try:
        yield
    except (TasukiError, OSError, KeyError, TypeError, ValueError, AttributeError) as error:
        with contextlib.suppress(OSError):
            sys.stderr.write(f"tasuki: nobody could be told: {error}\n")
