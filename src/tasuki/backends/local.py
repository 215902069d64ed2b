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
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from pathlib import Path

from tasuki.clock import Clock
from tasuki.errors import EXIT_FAILED, EXIT_RESUME_ME, RunError
from tasuki.relay.decide import MAX_FAILURES, next_action
from tasuki.relay.values import Cause, Ending, HandOver, Hold, PhaseEnded, Retry, Verdict
from tasuki.scheduler.local import give_cause, set_deadline
from tasuki.store.atomic import FILE_MODE
from tasuki.store.attempts import read_attempt_end, read_holder, write_attempt_end
from tasuki.store.claims import highest_claim
from tasuki.store.control import Word, last_said, say
from tasuki.store.jobs import JobFolder, last_start, read_outcome
from tasuki.store.runs import RunFolder
from tasuki.telemetry.events import EventLog, read_recent_events
from tasuki.telemetry.view import read_view

_TICK_S = 0.1
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
    requeue: bool | int = True
    environment: Mapping[str, str] = field(default_factory=dict)
    """Of this job alone; `drill` gives each its own disturbances."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preemption:
    """When to preempt, for trying things out."""

    every_s: float | None = None
    """After the start of each attempt."""
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
    num_stillborn: int = 0
    """Starts in a row that died before they took a claim."""
    devices: tuple[str, ...] = ()
    exit_code: int = 0


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
        on_tick: Callable[[], None] = lambda: None,
        on_event: Callable[[str, str], None] = lambda _kind, _text: None,
    ) -> None:
        self._clock = clock
        self._command = (python, "-P", "-m", "tasuki.supervisor")
        self._slots = slots
        self._preemption = preemption or Preemption()
        self._environment = environment
        self._free_devices = list(devices)
        """GPUs as CUDA_VISIBLE_DEVICES names them; empty on a machine without."""
        self._on_tick = on_tick
        self._on_event = on_event
        self._jobs: list[_Running] = []
        self._began_at = clock.monotonic()
        self._has_preempted_once = False
        self.is_interrupted = False
        """Somebody wants this to end: jobs hand over, and none is started again."""

    def run(self, jobs: Sequence[LocalJob]) -> int:
        """Until all jobs have ended; the exit code is the gravest one's."""
        self._jobs = [_Running(job) for job in jobs]
        self._began_at = self._clock.monotonic()
        with self._counted_interrupts():
            while any(job.state is not JobState.ENDED for job in self._jobs):
                while self._interrupts > self._handled_interrupts:
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
        self._interrupts = self._handled_interrupts = 0

        def count(*_: object) -> None:
            self._interrupts += 1

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
        last = {run.path: job.exit_code for job in self._jobs for run in job.job.runs}
        return all(code == 0 for code in last.values())

    def _turn(self) -> None:
        for job in self._jobs:
            if job.state is JobState.RUNNING:
                self._watch(job)
        for job in self._jobs:
            if job.state is JobState.WAITING and self._may_start(job):
                self._start(job)
        self._on_tick()

    def _may_start(self, job: _Running) -> bool:
        if self.is_interrupted:
            job.state, job.exit_code = JobState.ENDED, EXIT_RESUME_ME
            return False
        if self._is_stopped(job):
            job.state, job.exit_code = JobState.ENDED, EXIT_RESUME_ME
            return False
        ended = {j.job.folder.name for j in self._jobs if j.state is JobState.ENDED}
        busy = sum(j.job.gpus for j in self._jobs if j.state is JobState.RUNNING)
        is_free = busy == 0 or busy + job.job.gpus <= self._slots
        return is_free and set(job.job.after) <= ended

    def _is_stopped(self, job: _Running) -> bool:
        """Its runs are held, failed or cancelled, or an earlier job said that none may follow."""
        words = [said.word if (said := last_said(run)) else None for run in job.job.runs]
        if job.job.after and all(word in (Word.HOLD, Word.FAIL, Word.CANCEL) for word in words):
            return True
        for before in self._jobs:
            if before.job.folder.name in job.job.after and before.state is JobState.ENDED:
                outcome = read_outcome(before.job.folder, before.start) or {}
                if any(lane.get("stops_successors") for lane in outcome.get("lanes", ())):
                    return True
        return False

    def _start(self, job: _Running) -> None:
        folder = job.job.folder
        job.start = last_start(folder) + 1
        job.started_at = self._clock.monotonic()
        limit = job.job.limit_s
        set_deadline(
            folder,
            start=job.start,
            ends_monotonic=None if limit is None else job.started_at + limit,
        )
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
            self._on_exit(job, job.process.returncode)
            return
        now = self._clock.monotonic()
        if job.term_at is not None:
            if now >= job.term_at + job.job.grace_s:
                _kill_group(job.process.pid)
            return
        if job.job.limit_s is not None and now >= job.started_at + job.job.limit_s:
            self._end(job, Cause.LIMIT)
        elif self._is_to_preempt(job, now):
            self._end(job, Cause.PREEMPTED)

    def _is_to_preempt(self, job: _Running, now: float) -> bool:
        rule = self._preemption
        if rule.every_s is not None and now >= self._attempt_began(job, now) + rule.every_s:
            return True
        if self._has_preempted_once:
            return False
        is_time = rule.at_s is not None and now >= self._began_at + rule.at_s
        self._has_preempted_once = is_time or rule.when()
        return self._has_preempted_once

    def _attempt_began(self, job: _Running, now: float) -> float:
        """When the newest attempt of this start began: one that failed is tried again inside it."""
        own = (job.job.folder.name, job.start)
        holders = [read_holder(run, highest_claim(run)) for run in job.job.runs]
        ages = [self._clock.wall() - h.at for h in holders if h and (h.job, h.start) == own]
        return max(job.started_at, now - min(ages)) if ages else job.started_at

    def _end(self, job: _Running, cause: Cause) -> None:
        """TERM now; KILL when the grace is over."""
        assert job.process is not None
        give_cause(job.job.folder, start=job.start, cause=cause)
        job.term_at, job.cause = self._clock.monotonic(), cause
        with contextlib.suppress(ProcessLookupError):
            os.kill(job.process.pid, signal.SIGTERM)
        self._on_event("job-notice", f"job {job.job.folder.name} {_WORDS[cause]}")

    def _on_exit(self, job: _Running, returncode: int) -> None:
        os.close(job.leash)
        self._free_devices += job.devices
        job.devices = ()
        _kill_group(job.process.pid if job.process else 0)  # stragglers of the session
        outcome = read_outcome(job.job.folder, job.start)
        if outcome is None:
            verdict, job.exit_code = self._bury(job, returncode)
        else:
            verdict, job.exit_code = Verdict(outcome["verdict"]), int(outcome["exit_code"])
        if verdict is not Verdict.END and not self.is_interrupted:
            # The plan of a job's smaller successor is `plan`'s business; here the job comes back.
            job.state = JobState.WAITING
            self._on_event("job-requeued", f"job {job.job.folder.name} requeued")
            return
        job.state = JobState.ENDED
        self._on_event("job-ended", f"job {job.job.folder.name} ended")

    def _bury(self, job: _Running, returncode: int) -> tuple[Verdict, int]:
        """A supervisor died without a word: write down how its attempts ended, and ask relay."""
        verdict, code = Verdict.END, EXIT_RESUME_ME
        end = PhaseEnded(
            ending=Ending.FAILED,
            cause=job.cause,
            message=f"its supervisor ended with status {returncode} without a word",
            hint=f"see {job.job.folder.log(job.start)}",
        )
        if self._has_claimed(job):
            job.num_stillborn = 0
        elif job.cause is Cause.NONE:
            job.num_stillborn += 1
        for run in job.job.runs:
            if run.is_complete():
                continue
            claim = highest_claim(run)
            if job.num_stillborn >= MAX_FAILURES:
                reason = f"its supervisor died {job.num_stillborn} times before it could begin"
                say(run, Word.HOLD, reason=reason, hint=end.hint, claim=claim)
                code = EXIT_FAILED
                continue
            told = read_recent_events(run, claim)
            own = replace(
                end,
                has_progressed=_has_committed(run, claim),
                has_stepped=any(event["kind"] == "progress" for event in told),
            )
            action = next_action(read_view(run, until=None, requeue=job.job.requeue), own)
            self._write_end(job, run, claim, own)
            if isinstance(action, Hold):
                say(run, Word.HOLD, reason=action.reason, hint=action.hint, claim=claim)
                code = EXIT_FAILED
            elif isinstance(action, Retry) or (isinstance(action, HandOver) and action.is_resumed):
                verdict = Verdict.REQUEUE
        return verdict, code

    def _has_claimed(self, job: _Running) -> bool:
        """Did this start take a claim on one of its runs?"""
        holders = [
            read_holder(run, highest_claim(run)) for run in job.job.runs if run.claims.is_dir()
        ]
        own = (job.job.folder.name, job.start)
        return any(holder and (holder.job, holder.start) == own for holder in holders)

    def _write_end(self, job: _Running, run: RunFolder, claim: int, end: PhaseEnded) -> None:
        holder = read_holder(run, claim) if claim else None
        if holder is None or (holder.job, holder.start) != (job.job.folder.name, job.start):
            return
        if read_attempt_end(run, claim) is None:
            write_attempt_end(run, claim, {**asdict(end), "at": self._clock.wall()})
            log = EventLog(run, claim=claim, node=0, who="backend", clock=self._clock)
            log.add("attempt-ended", **asdict(end))
            log.close()

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


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if pid > 1:
            os.killpg(pid, signal.SIGKILL)


def _has_committed(run: RunFolder, claim: int) -> bool:
    """A checkpoint beyond a stage's start was committed by this claim."""
    if not run.checkpoints.is_dir():
        return False
    return any(Path(name).suffix == f".c{claim}" for name in os.listdir(run.checkpoints))
