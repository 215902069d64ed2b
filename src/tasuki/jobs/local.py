"""The local backend: plays scheduler on this machine, with limit, grace, preemption and requeue.

Jobs are supervised process trees of their own session. Each supervisor holds one end of a pipe (its
leash): if this process dies, they see end of file and hand over.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from tasuki.clock import Clock
from tasuki.errors import EXIT_FAILED, EXIT_RESUME_ME, RunError, StoreError
from tasuki.jobs.local_allocation import give_cause, read_deadline, set_deadline
from tasuki.runs.atomic import FILE_MODE
from tasuki.runs.attempts import Holder, read_attempt_end, read_holder
from tasuki.runs.claims import highest_claim
from tasuki.runs.control import Word, last_said, say
from tasuki.runs.decide import MAX_FAILURES, after_stillbirth, stays_away
from tasuki.runs.jobs import JobFolder, last_start, make_smaller, read_outcome
from tasuki.runs.runs import RunFolder
from tasuki.runs.values import Cause, Hold, Verdict
from tasuki.units import format_seconds

_TICK_S = 0.1
_BURIED_WITHIN_S = 60.0
_GONE_WITHIN_S = 5.0
"""Of processes that were killed: a busy machine takes a moment to clear them away."""
_TOO_LATE_S = 15.0
"""A job that has less than this is not worth its start."""
_WORDS = {
    Cause.PREEMPTED: "is preempted",
    Cause.LIMIT: "is at its time limit",
    Cause.INTERRUPTED: "hands over",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalJob:
    """What this backend needs to know of a job."""

    folder: JobFolder
    after: tuple[str, ...]
    runs: tuple[RunFolder, ...]
    limit_s: float | None
    grace_s: float
    gpus: int
    environment: Mapping[str, str] = field(default_factory=dict)
    """Of this job alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preemption:
    """When to preempt, for trying things out."""

    every_s: float | None = None
    """After the start of each attempt; longer, aloud, where attempts bring nothing in that time."""
    at_s: float | None = None
    """Once, counted from the beginning."""
    when: Callable[[], bool] = lambda: False
    """Once, when this becomes true."""


class JobState(StrEnum):
    WAITING = "waiting"
    RUNNING = "running"
    ENDED = "ended"


@dataclass(slots=True)
class _Running:
    job: LocalJob
    state: JobState = JobState.WAITING
    process: subprocess.Popen[bytes] | None = None
    leash: int = -1
    start: int = 0
    started_at: float = 0.0
    term_at: float | None = None
    cause: Cause = Cause.NONE
    devices: tuple[str, ...] = ()
    exit_code: int = 0
    num_fruitless: int = 0
    """Attempts in a row that were preempted before they had saved anything."""
    patience: float = 1.0
    """By which `Preemption.every_s` is stretched."""
    num_failed_starts: int = 0
    """Starts whose end nobody could write down."""


class LocalBackend:
    """Runs the jobs of a plan to their end, here."""

    def __init__(
        self,
        *,
        clock: Clock,
        python: str = sys.executable,
        slots: int = 1,
        preemption: Preemption | None = None,
        environment: dict[str, str],
        devices: Sequence[str] = (),
        until: float | None = None,
        on_tick: Callable[[], None] = lambda: None,
        on_event: Callable[[str, str], None] = lambda _kind, _text: None,
    ) -> None:
        self._clock = clock
        self._command = (python, "-P", "-m", "tasuki.jobs")
        self._slots = slots
        self._preemption = preemption or Preemption()
        self._environment = environment
        self._free_devices = list(devices)
        """GPUs as CUDA_VISIBLE_DEVICES names them; empty on a machine without."""
        self._until = until
        """On the monotonic clock: when this machine is taken from us; no job outlasts it."""
        self._on_tick = on_tick
        self._on_event = on_event
        self._jobs: list[_Running] = []
        self._began_at = clock.monotonic()
        self._has_preempted_once = False
        self.is_interrupted = False
        """Somebody wants this to end: jobs hand over, and none is started again."""
        self.num_interrupts = 0
        """Ctrl-C, TERM and calls of `interrupt`."""

    def run(self, jobs: Sequence[LocalJob]) -> int:
        """Until all jobs have ended; the exit code is the gravest one's."""
        self._jobs = [_Running(job) for job in jobs]
        self._began_at = self._clock.monotonic()
        with self._counted_interrupts():
            while any(job.state is not JobState.ENDED for job in self._jobs):
                while self.num_interrupts > self._handled_interrupts:
                    self._handled_interrupts += 1
                    self._interrupt()
                self._turn()
                self._clock.sleep(_TICK_S)
        codes = [job.exit_code for job in self._jobs]
        if EXIT_FAILED in codes:
            return EXIT_FAILED
        # A handover that a later job of the plan took up is no unfinished business.
        return EXIT_RESUME_ME if not self._all_done() else 0

    @contextlib.contextmanager
    def _counted_interrupts(self) -> Iterator[None]:
        """Ctrl-C and TERM are counted, and acted upon between turns: never in the middle of one."""
        self.num_interrupts = self._handled_interrupts = 0

        def count(*_: object) -> None:
            self.num_interrupts += 1

        if threading.current_thread() is not threading.main_thread():
            yield
            return
        kept = {number: signal.signal(number, count) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in kept.items():
                signal.signal(number, handler)

    def _all_done(self) -> bool:
        last = {run: job for job in self._jobs for run in job.job.runs}
        return all(job.exit_code == 0 or _is_done(run, job) for run, job in last.items())

    def _turn(self) -> None:
        for job in self._jobs:
            if job.state is JobState.RUNNING:
                self._watch(job)
        for job in self._jobs:
            if job.state is JobState.WAITING and self._may_start(job):
                self._start(job)
        self._on_tick()

    def _may_start(self, job: _Running) -> bool:
        is_over = self._until is not None and self._clock.monotonic() >= self._until - _TOO_LATE_S
        if self.is_interrupted or is_over or self._is_stopped(job):
            job.state, job.exit_code = JobState.ENDED, EXIT_RESUME_ME
            return False
        ended = {j.job.folder.name for j in self._jobs if j.state is JobState.ENDED}
        busy = sum(j.job.gpus for j in self._jobs if j.state is JobState.RUNNING)
        is_free = busy == 0 or busy + job.job.gpus <= self._slots
        return is_free and set(job.job.after) <= ended

    def _is_stopped(self, job: _Running) -> bool:
        """Its runs are held, failed or cancelled, or an earlier job said that none may follow."""
        words = [_last_word(run) for run in job.job.runs]
        before = [j for j in self._jobs if j.job.folder.name in job.job.after]
        ended = [read_outcome(j.job.folder, j.start) or {} for j in before if j.state == "ended"]
        return stays_away(
            words,
            is_first=not job.job.after,
            is_stopped=any(
                lane.get("stops_successors") for told in ended for lane in told.get("lanes", ())
            ),
        )

    def _start(self, job: _Running) -> None:
        folder = job.job.folder
        job.start = last_start(folder) + 1
        job.started_at = self._clock.monotonic()
        set_deadline(folder, start=job.start, ends_monotonic=self._ends(job))
        reader, job.leash = os.pipe()
        log = os.open(folder.log(job.start), os.O_WRONLY | os.O_CREAT | os.O_APPEND, FILE_MODE)
        try:
            job.process = subprocess.Popen(
                [*self._command, str(folder.path), "--leash", str(reader)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment_of(job),
                pass_fds=[reader],
                start_new_session=True,
            )
        except OSError as error:
            os.close(job.leash)
            raise RunError(
                f"no supervisor can be started with `{self._command[0]}`: {error.strerror}",
                hint="check `cluster.python`",
            ) from error
        finally:
            os.close(reader)
            os.close(log)
        job.term_at, job.cause = None, Cause.NONE
        job.state = JobState.RUNNING
        self._on_event("job-started", f"job {folder.name} started (start {job.start})")

    def _environment_of(self, job: _Running) -> dict[str, str]:
        """Jobs side by side get GPUs of their own."""
        own = {**self._environment, **job.job.environment}
        if not self._free_devices:
            return own
        job.devices = tuple(self._free_devices[: job.job.gpus])
        del self._free_devices[: job.job.gpus]
        return {**own, "CUDA_VISIBLE_DEVICES": ",".join(job.devices)}

    def _watch(self, job: _Running) -> None:
        assert job.process is not None
        if job.process.poll() is not None:
            self._on_exit(job)
            return
        now = self._clock.monotonic()
        if job.term_at is not None:
            if now >= job.term_at + job.job.grace_s:
                _kill_group(job.process.pid)
            return
        if self._is_at_its_end(job, now):
            self._end(job, Cause.LIMIT)
        elif self._is_to_preempt(job, now):
            self._end(job, Cause.PREEMPTED)

    def _ends(self, job: _Running) -> float | None:
        own = None if job.job.limit_s is None else job.started_at + job.job.limit_s
        known = [end for end in (own, self._until) if end is not None]
        return min(known, default=None)

    def _is_at_its_end(self, job: _Running, now: float) -> bool:
        """At its limit, or whenever somebody has moved it to."""
        ends = self._ends(job)
        if ends is None:
            return False
        moved = read_deadline(job.job.folder, job.start)
        return now >= (ends if moved is None else moved)

    def _is_to_preempt(self, job: _Running, now: float) -> bool:
        rule = self._preemption
        every_s = None if rule.every_s is None else rule.every_s * job.patience
        if every_s is not None and now >= self._attempt_began(job, now) + every_s:
            return True
        if self._has_preempted_once:
            return False
        is_time = rule.at_s is not None and now >= self._began_at + rule.at_s
        self._has_preempted_once = is_time or rule.when()
        return self._has_preempted_once

    def _attempt_began(self, job: _Running, now: float) -> float:
        """When the newest attempt of this start began: one that failed is tried again inside it."""
        ages = [self._clock.wall() - holder.at for _, holder in _held_by(job)]
        return max(job.started_at, now - min(ages)) if ages else job.started_at

    def _count_fruitless(self, job: _Running) -> None:
        """A rule that leaves less time than imports take would preempt for ever."""
        every_s = self._preemption.every_s
        if job.cause is not Cause.PREEMPTED or not every_s:
            return
        ends = [read_attempt_end(run, holder.claim) for run, holder in _held_by(job)]
        if any(end is not None and end.get("has_progressed") for end in ends):
            job.num_fruitless = 0
            return
        job.num_fruitless += 1
        if job.num_fruitless >= MAX_FAILURES:
            job.patience *= 2
            self._on_event(
                "job-patience",
                f"job {job.job.folder.name}: {job.num_fruitless} attempts in a row were preempted "
                f"before they had saved anything: the next has {format_seconds(every_s)} × "
                f"{job.patience:.0f}; a longer `--preempt-every` leaves time for start and a save",
            )

    def _end(self, job: _Running, cause: Cause) -> None:
        """TERM now; KILL when the grace is over."""
        assert job.process is not None
        give_cause(job.job.folder, start=job.start, cause=cause)
        job.term_at, job.cause = self._clock.monotonic(), cause
        with contextlib.suppress(ProcessLookupError):
            os.kill(job.process.pid, signal.SIGTERM)
        self._on_event("job-notice", f"job {job.job.folder.name} {_WORDS[cause]}")

    def _on_exit(self, job: _Running) -> None:
        os.close(job.leash)
        self._free_devices += job.devices
        job.devices = ()
        self._end_stragglers(job)
        outcome = read_outcome(job.job.folder, job.start) or self._bury(job)
        with contextlib.suppress(StoreError):  # a courtesy, not worth an end
            self._count_fruitless(job)
        verdict, job.exit_code = Verdict(outcome["verdict"]), int(outcome["exit_code"])
        if verdict is not Verdict.END and not self.is_interrupted:
            job.state = JobState.WAITING
            words = self._shrink(job, outcome) if verdict is Verdict.SUCCESSOR else "requeued"
            self._on_event("job-requeued", f"job {job.job.folder.name} {words}")
            return
        job.state = JobState.ENDED
        self._on_event("job-ended", f"job {job.job.folder.name} ended")

    def _end_stragglers(self, job: _Running) -> None:
        """Ranks may outlive a supervisor that was killed; nobody is left when a job has ended."""
        assert job.process is not None
        pid = job.process.pid
        _kill_group(pid)
        waited_s = 0.0
        while waited_s < _GONE_WITHIN_S and _is_alive(pid):
            self._clock.sleep(_TICK_S)
            waited_s += _TICK_S

    def _shrink(self, job: _Running, outcome: Mapping[str, Any]) -> str:
        """The same folder starts again with fewer GPUs: others may have the rest."""
        gpus, before = int(outcome.get("gpus") or job.job.gpus), job.job.gpus
        if gpus >= before or not make_smaller(job.job.folder, gpus=gpus, cpus=outcome.get("cpus")):
            return "requeued"
        job.job = replace(job.job, gpus=gpus)
        return f"goes on with {gpus} of {before} GPUs"

    def _bury(self, job: _Running) -> dict[str, Any]:
        """A supervisor died without a word: another one says what that means."""
        log = job.job.folder.log(job.start).open("ab")
        with log, contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(
                [*self._command, str(job.job.folder.path), "--after"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment,
                timeout=_BURIED_WITHIN_S,
                check=False,
            )
        return read_outcome(job.job.folder, job.start) or self._give_up(job)

    def _give_up(self, job: _Running) -> dict[str, Any]:
        """Not even that can be started: what is called Python is none, or has no tasuki."""
        job.num_failed_starts += 1
        hint = f"see {job.job.folder.log(job.start)}"
        action = after_stillbirth(job.num_failed_starts, hint=hint)
        if not isinstance(action, Hold):
            return {"verdict": Verdict.REQUEUE, "exit_code": EXIT_RESUME_ME}
        for run in job.job.runs:
            if not run.is_complete():
                with contextlib.suppress(StoreError):
                    claim = highest_claim(run)
                    say(run, Word.HOLD, reason=action.reason, hint=action.hint, claim=claim)
        return {"verdict": Verdict.END, "exit_code": EXIT_FAILED}

    def interrupt(self) -> None:
        """As Ctrl-C does; for whoever has a clock of their own."""
        self.num_interrupts += 1

    def _interrupt(self) -> None:
        """Ctrl-C: hand over; a second one kills."""
        if self.is_interrupted:
            for job in self._jobs:
                if job.process is not None and job.state is JobState.RUNNING:
                    _kill_group(job.process.pid)
            return
        self.is_interrupted = True
        self._on_event("interrupted", "handing over (Ctrl-C again to kill)")
        for job in self._jobs:
            if job.process is not None and job.state is JobState.RUNNING:
                self._end(job, Cause.INTERRUPTED)


def _is_done(run: RunFolder, job: _Running) -> bool:
    """Whatever became of the others of its job."""
    if run.is_complete():
        return True
    told = read_outcome(job.job.folder, job.start) or {}
    own = [lane for lane in told.get("lanes", ()) if lane.get("run") == run.name]
    return bool(own) and all(lane.get("state") in ("complete", "done") for lane in own)


# A run whose folder is gone or damaged is its lane's trouble, and must not end the others.


def _last_word(run: RunFolder) -> Word | None:
    try:
        said = last_said(run)
    except StoreError:
        return None
    return said.word if said is not None else None


def _last_holder(run: RunFolder) -> Holder | None:
    try:
        return read_holder(run, highest_claim(run))
    except StoreError:
        return None


def _held_by(job: _Running) -> list[tuple[RunFolder, Holder]]:
    """Runs whose newest attempt is of this start."""
    own = (job.job.folder.name, job.start)
    found = [(run, _last_holder(run)) for run in job.job.runs]
    return [(run, h) for run, h in found if h is not None and (h.job, h.start) == own]


def _is_alive(group: int) -> bool:
    """Does anybody of a process group live? Zombies do not."""
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):
        return False
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):  # gone meanwhile
            # Before the last bracket is the program's name, which may hold anything.
            state, _, of = stat.read_bytes().rpartition(b")")[2].split()[:3]
            if int(of) == group and state not in (b"Z", b"X"):
                return True
    return False


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if pid > 1:
            os.killpg(pid, signal.SIGKILL)
