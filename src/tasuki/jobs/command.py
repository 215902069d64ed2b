"""A phase that is a command of the user's own: its processes and all they start, and no wire.

It is told of the end by two files and by SIGTERM, and tells by its exit code: 0 is done, 75 is
"resume me", everything else failed. 0 after a notice is done only with its done-marker: a script
that obeys SIGTERM ends well in the middle of its work too. Nobody of it watches our clock, so the
supervisor gives the notice before a time limit. One process, or with `ranks: 4` four of the same
command, which go down together.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasuki.checkpoint.lineage import list_checkpoints
from tasuki.clock import Clock
from tasuki.errors import EXIT_DONE, EXIT_RESUME_ME, StoreError, UsageError
from tasuki.jobs.commanded import LEAST_WORK_S, read_ranks
from tasuki.jobs.job import JobOrder
from tasuki.jobs.kin import end_leftovers, find_kin, send, tell_kin
from tasuki.jobs.phase import (
    PEERS_LEAVE_S,
    SILENTLY_KILLED,
    Phase,
    Rank,
    make_wires,
    signal_name,
)
from tasuki.jobs.programs import (
    Started,
    environment_of,
    find_words,
    forget,
    of_ranks,
    start_one,
)
from tasuki.jobs.ranks import PhaseOrder
from tasuki.runs.atomic import make_folder, read_json, write_bytes
from tasuki.runs.runs import CommandFolder
from tasuki.runs.values import Cause, Ending, PhaseEnded
from tasuki.units import format_seconds

_LAST_WORDS_S = 1.0
"""Between the end of a command and that of its job, for the outcome …"""
_WAY_BACK_S = 5.0
"""… and under Slurm for the way back into the queue."""
_HEARD_WITHIN_S = 1.0
"""Slurm signals every process of a job by itself: a script may have obeyed before we have heard."""
_LET_GO_S = 5.0
"""A process that the kernel does not let go is not waited for any longer."""
_HINT = "`tasuki logs RUN --err` shows what it said"


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandOrder:
    """What is to be started."""

    phase: PhaseOrder
    words: tuple[str, ...]
    gpus: tuple[int, ...]
    grace_s: float
    """What it has at a time limit, from its notice to its end."""
    last_words_s: float = _LAST_WORDS_S
    settles_s: float = 0.0
    """How long after its end a notice may still be heard that it has had."""
    ranks: int | None = None
    """Started by us; None: one process, which starts its own if it likes."""
    ends_at: float | None = None
    """On the monotonic clock: when the scheduler ends the job, as far as it is known."""

    @property
    def folder(self) -> CommandFolder:
        return self.phase.run.command(self.phase.claim, self.phase.stage, self.phase.kind)


def order_command(
    phase: PhaseOrder,
    words: tuple[str, ...],
    job: JobOrder,
    *,
    gpus: tuple[int, ...],
    ends_at: float | None = None,
) -> CommandOrder:
    """At a time limit it has `cluster.grace`, though the scheduler's own may be shorter: there it
    is we who choose when the notice comes."""
    told = (read_json(phase.run.spec).get("cluster") or {}).get("grace_s")
    return CommandOrder(
        phase=phase,
        words=words,
        gpus=gpus,
        grace_s=max(job.ranks_grace_s, float(told or 0.0)),
        last_words_s=_WAY_BACK_S if job.is_slurm else _LAST_WORDS_S,
        settles_s=_HEARD_WITHIN_S if job.is_slurm else 0.0,
        ranks=read_ranks(phase.run, phase.stage) if phase.kind == "train" else None,
        ends_at=ends_at,
    )


def start_command(
    order: CommandOrder, job: JobOrder, *, clock: Clock, environment: Mapping[str, str]
) -> CommandPhase:
    """UsageError: it cannot be started at all."""
    phase, folder = order.phase, order.folder
    end_leftovers(phase.run, sleep=clock.sleep)
    make_folder(folder.path)
    environment = environment_of(order, job, environment)
    words = find_words(order.words, job, environment)
    # Before its first line: a script may read its deadline at once, and our disk may be slow.
    deadline = DeadlineFile(folder.deadline, clock)
    deadline.write(None if order.ends_at is None else order.ends_at - clock.monotonic())
    started: list[Started] = []
    for rank, own in enumerate(of_ranks(order.ranks, environment, cpus=job.cpus)):
        try:
            started.append(start_one(order, job, words, rank, own, started))
        except OSError as error:
            send([one.process.pid for one in started], signal.SIGKILL)
            deadline.remove()
            forget(folder)
            what = error.filename if isinstance(error.filename, str) else order.words[0]
            raise UsageError(
                f"the command `{shlex.join(order.words)}` cannot be started: {what}: "
                f"{error.strerror}",
                hint=f"its first word is looked up in PATH and in {job.cwd}, where it runs",
            ) from error
    return CommandPhase(order, started, deadline, clock=clock)


def _mute(number: int, started: Started) -> Rank:
    """A rank without a wire."""
    wire, theirs = make_wires()
    wire.is_closed = True
    wire.sock.close()
    theirs.close()
    return Rank(number, started.process, wire, log=started.log)


@dataclass(slots=True)
class _Times:
    """On the monotonic clock."""

    began_at: float
    ends_at: float | None = None
    """When the scheduler ends the job."""
    lead_s: float = 0.0
    """So long before that the notice is given."""
    least_s: float = LEAST_WORK_S
    noticed_at: float | None = None
    left_at: float | None = None
    """When the command itself was gone; others that it started may still live."""
    rest_killed_at: float | None = None


@dataclass(slots=True)
class DeadlineFile:
    """The end of a command's job on the wall clock, where the command reads it."""

    path: Path
    clock: Clock
    _at: float | None = None
    _is_written: bool = False

    def write(self, remaining_s: float | None) -> None:
        """Only where it has moved: the phase is told every few minutes."""
        at = None if remaining_s is None else self.clock.wall() + remaining_s
        is_same = self._is_written and (at is None) == (self._at is None)
        if is_same and (at is None or abs(at - (self._at or 0.0)) < 1.0):
            return
        text = "never\n" if at is None else f"{at:.3f}\n"
        with contextlib.suppress(StoreError):  # a full disk: the signal will come all the same
            write_bytes(self.path, text.encode())
            self._at, self._is_written = at, True

    def remove(self) -> None:
        with contextlib.suppress(OSError):
            self.path.unlink()


class CommandPhase(Phase):
    """With the face of a phase of ranks, which say nothing."""

    def __init__(
        self,
        order: CommandOrder,
        started: Sequence[Started],
        deadline: DeadlineFile,
        *,
        clock: Clock,
    ) -> None:
        ranks = [_mute(number, one) for number, one in enumerate(started)]
        super().__init__(order.phase.kind, order.phase.stage, ranks, grace_s=order.grace_s)
        self.folder = order.folder
        self._order, self._clock, self._started = order, clock, started
        self._times = _Times(clock.monotonic())
        self._deadline = deadline
        self._statuses: list[int | None] = [None] * len(started)

    @property
    def _group(self) -> int:
        return self._started[0].process.pid

    @property
    def _status(self) -> int | None:
        """Of the command as a whole; None while one of its processes lives. The first that failed
        tells why; the others went down with it."""
        if self.first_end is not None and None not in self._statuses:
            return self._statuses[self.first_end]
        if None in self._statuses:
            return None
        return EXIT_RESUME_ME if EXIT_RESUME_ME in self._statuses else EXIT_DONE

    # -- what it is told --------------------------------------------------------------------

    def tell(self, kind: str, **facts: Any) -> None:
        if kind == "deadline":
            self._set_deadline(facts.get("remaining_s"))
        elif kind == "notice":
            self._give_notice(str(facts["cause"]), facts.get("remaining_s"))

    def _set_deadline(self, remaining_s: float | None) -> None:
        times = self._times
        if times.noticed_at is not None:
            return
        times.ends_at = None
        if remaining_s is not None:
            times.ends_at = self._clock.monotonic() + remaining_s
            if not times.lead_s:
                times.lead_s = min(
                    (self.grace_s or 0.0) + self._order.last_words_s, remaining_s / 2
                )
                times.least_s = min(LEAST_WORK_S, remaining_s / 4)
        self._deadline.write(remaining_s)

    def _give_notice(self, cause: str, remaining_s: float | None) -> None:
        if self._times.noticed_at is not None:
            return
        if remaining_s is not None:
            self._deadline.write(max(0.0, remaining_s))
        self._times.noticed_at = self._clock.monotonic()
        with contextlib.suppress(StoreError):
            write_bytes(self.folder.notice, f"{cause}\n".encode())
        tell_kin(self._group)

    def is_due(self, now: float) -> bool:
        """Must it be told now that its time limit is near?"""
        times = self._times
        if times.noticed_at is not None or times.ends_at is None or self._status is not None:
            return False
        return now >= times.ends_at - times.lead_s

    @property
    def last_moment(self) -> float | None:
        """When it must be gone, so that its job can end before the limit."""
        times = self._times
        if times.ends_at is None:
            return None
        return times.ends_at - min(self._order.last_words_s, times.lead_s / 6)

    # -- its end ----------------------------------------------------------------------------

    def reap(self, now: float) -> None:
        """Over when all that it started is gone too."""
        times = self._times
        if self.has_ended:
            return
        if times.left_at is None:
            self._poll(now)
            if None in self._statuses:
                return
            times.left_at = now
            self._end_rest(now)
        if self.notice is Cause.NONE and now < times.left_at + self._order.settles_s:
            return
        is_stuck = times.rest_killed_at is not None and now >= times.rest_killed_at + _LET_GO_S
        if is_stuck or not self._rest():
            for rank, status in zip(self.ranks, self._statuses, strict=True):
                rank.status = status

    def _poll(self, now: float) -> None:
        """When one of several is gone, the others must not wait for it for ever."""
        for number, one in enumerate(self._started):
            if self._statuses[number] is not None:
                continue
            status = self._statuses[number] = one.process.poll()
            if status is None or (status == EXIT_DONE and self.first_end is None):
                continue
            if status not in (EXIT_DONE, EXIT_RESUME_ME) and self.first_end is None:
                self.first_end = number
            if len(self._started) > 1 and self._times.noticed_at is None:
                self.kill_by(now + PEERS_LEAVE_S, "another rank had ended")

    def _end_rest(self, now: float) -> None:
        """TERM, then KILL. After a notice its group has heard already, and may save to its end: a
        shell dies of the signal at once, and the script that it started does not."""
        if self._times.noticed_at is None:
            send(self._rest(), signal.SIGTERM)
            self.kill_by(now + PEERS_LEAVE_S, "the command itself had ended")
            return
        send(find_kin(self._group, self._mark, is_beyond=True), signal.SIGTERM)
        if self.kill_at is None:
            self.kill_by(now + (self.grace_s or PEERS_LEAVE_S), "the notice was over")

    @property
    def _mark(self) -> str:
        return str(self.folder.notice)

    def _rest(self) -> list[int]:
        return find_kin(self._group, self._mark)

    def tick(self, now: float) -> None:
        if self.kill_at is None or now < self.kill_at:
            return
        if self._times.left_at is None and self.first_end is None:
            self.is_killed = True
        if self._times.rest_killed_at is None:
            self._times.rest_killed_at = now
        self.kill()  # at every turn: somebody may just have been born

    def kill(self) -> None:
        both = zip(self._started, self._statuses, strict=True)
        send([one.process.pid for one, status in both if status is None], signal.SIGKILL)
        send(self._rest(), signal.SIGKILL)

    def close(self) -> None:
        """There is no wire."""

    @property
    def is_only_lost(self) -> bool:
        return False

    @property
    def is_command(self) -> bool:
        return True

    @property
    def worked_s(self) -> float:
        """From its beginning to its end, or to the notice."""
        times = self._times
        ended = times.left_at if times.left_at is not None else self._clock.monotonic()
        return (times.noticed_at if times.noticed_at is not None else ended) - times.began_at

    def ending(self) -> PhaseEnded:
        """What its exit status means."""
        status, is_noticed = self._status, self.notice is not Cause.NONE
        if status == EXIT_DONE and (not is_noticed or self.folder.done.exists()):
            return PhaseEnded(ending=Ending.DONE, has_progressed=True)
        if status == EXIT_DONE:
            words = "ended with 0 after a notice, without its done-marker: it is to go on"
            return self._handed_over(words)
        if status == EXIT_RESUME_ME:
            return self._handed_over("asked to be resumed (exit code 75)")
        if is_noticed and not self.is_killed and status == -signal.SIGTERM:
            if (
                self.folder.done.exists()
            ):  # it came between the end of a loop and that of its script
                return PhaseEnded(ending=Ending.DONE, has_progressed=True)
            return self._handed_over("ended by the SIGTERM of its notice")
        return PhaseEnded(
            ending=Ending.FAILED,
            cause=self.notice,
            message=self._explain_status(status),
            hint=_HINT.replace("RUN", self._order.phase.run.name),
            has_progressed=(is_noticed and self._has_worked) or self._has_saved,
        )

    @property
    def _has_worked(self) -> bool:
        return self.worked_s >= self._times.least_s or self._has_saved

    @property
    def _has_saved(self) -> bool:
        """Has its loop (`tasuki.open_run`) committed a checkpoint beyond its start?"""
        phase = self._order.phase
        return any(
            found.claim == phase.claim and found.start_of is None
            for found in list_checkpoints(phase.run)
        )

    def _handed_over(self, words: str) -> PhaseEnded:
        cause = self.notice
        if cause is Cause.NONE and self._times.ends_at is not None:
            cause = Cause.LIMIT  # by its own look at the clock
        return PhaseEnded(
            ending=Ending.HANDED_OVER,
            cause=cause,
            message=f"the command {words}",
            has_progressed=self._has_worked,
        )

    def _explain_status(self, status: int | None) -> str:
        if self.is_killed:
            after = ""
            if self._times.noticed_at is not None and self.kill_at is not None:
                waited = format_seconds(round(self.kill_at - self._times.noticed_at, 1))
                after = f": it did not end within {waited} of its SIGTERM"
            return f"the command was killed by the supervisor because {self.killed_for}{after}"
        if status is not None and status < 0:
            killed = SILENTLY_KILLED.format(signal_name(-status))
            return f"{self._who} {killed} (SIGKILL: often the node's memory was full)"
        said = self._last_line()
        return f"{self._who} ended with exit code {status}" + (f": {said}" if said else "")

    @property
    def _who(self) -> str:
        is_one = len(self._started) == 1
        return "the command" if is_one else f"rank {self.first_end} of the command"

    def _last_line(self) -> str:
        """Of what this phase wrote to its .err log."""
        one = self._started[self.first_end or 0]
        path, began = one.err, one.err_began
        with contextlib.suppress(OSError), path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(began, size - 4096))
            lines = file.read().decode(errors="replace").strip().splitlines()
            return lines[-1].strip()[:200] if lines else ""
        return ""
