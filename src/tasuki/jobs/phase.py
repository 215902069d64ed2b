"""The ranks of one phase: one stage's training, or one evaluation, as processes.

Started together; down together: when one fails, the others get a few seconds and are killed. When
one says nothing for longer than it said it would, all write down where they stand and are killed.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from tasuki.errors import EXIT_DONE, EXIT_RESUME_ME
from tasuki.jobs.pulse import Pulse, awake_s, find_culprit, is_hung, state_of
from tasuki.runs.atomic import FILE_MODE, make_folder
from tasuki.runs.values import Cause, Ending, PhaseEnded
from tasuki.runs.wire import Wire
from tasuki.signals import STACKS, deaf

PEERS_LEAVE_S = 4.0
"""How long the other ranks may take to notice that one is gone (gloo: 0.34 s) before they are
killed."""
SILENTLY_KILLED = "was killed by {} without a word"
"""How `end.json` tells of a rank that somebody else ended; whoever asks for more memory after a
SIGKILL looks for these words."""
_LAST_LEAVES_S = 60.0
"""How long a rank may stay when another has handed over: rank 0 may have checkpoints to prune."""
_STACKS_WITHIN_S = 1.0


class Process(Protocol):
    """A started rank."""

    pid: int

    def poll(self) -> int | None:
        """The exit status as subprocess gives it, None while running."""
        ...


@dataclass(frozen=True, slots=True)
class Launch:
    """How to start one rank."""

    arguments: Sequence[str]
    """Of `python -m tasuki.train`."""
    python: str
    container: tuple[str, ...]
    """The words before `python` that start it inside a container; empty: without one."""
    cwd: Path
    environment: dict[str, str]
    log: Path
    err: Path
    fd: int
    """The rank's end of the socketpair; the same number in the child."""


Launcher = Callable[[Launch], Process]


def start_process(launch: Launch) -> Process:
    """A fresh interpreter. It stays in the supervisor's process group: one signal reaches all; one
    that comes before the rank's handlers are there is held back until then."""
    with _append(launch.log) as out, _append(launch.err) as err, deaf():
        return subprocess.Popen(
            # -P: a file of the user's called random.py must not hide Python's own.
            [*launch.container, launch.python, "-P", "-m", "tasuki.train", *launch.arguments],
            cwd=launch.cwd,
            env=launch.environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            pass_fds=[launch.fd],
        )


def _append(path: Path) -> Any:
    make_folder(path.parent)
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, FILE_MODE), "ab")


@dataclass(slots=True)
class Rank:
    number: int
    process: Process
    wire: Wire
    log: Path | None = None
    status: int | None = None
    done: dict[str, Any] | None = None
    doing: str = "start"
    step: int | None = None
    limit_s: float | None = None
    """How long it may be silent; None: as long as it likes."""
    silent_s: float = 0.0
    told: tuple[float, int] | None = None
    """When, on its own clock, it had used how many samples."""

    def pulse(self) -> Pulse:
        return Pulse(
            rank=self.number,
            silent_s=self.silent_s,
            limit_s=self.limit_s,
            doing=self.doing,
            step=self.step,
        )


@dataclass(slots=True)
class Phase:
    """All ranks of one phase."""

    kind: str
    stage: str
    ranks: list[Rank]
    has_stepped: bool = False
    has_progressed: bool = False
    killed_for: str = ""
    kill_at: float | None = None
    notice: Cause = Cause.NONE
    is_killed: bool = False
    first_end: int | None = None
    """The rank that failed first: what the others say is a consequence."""
    hung: Pulse | None = None
    grace_s: float | None = None
    """What a rank has after a signal that came to it alone."""
    looked_at: float | None = None

    def tell(self, kind: str, **facts: Any) -> None:
        for rank in self.ranks:
            rank.wire.send(kind, **facts)

    def on_message(self, message: dict[str, Any], rank: Rank) -> None:
        rank.silent_s = 0.0
        match message["kind"]:
            case "step":
                self.has_stepped = True
                rank.doing, rank.step = "train", message.get("step")
                rank.limit_s = message.get("limit_s")
                at, samples = message.get("at"), message.get("samples")
                if isinstance(at, float) and isinstance(samples, int):
                    rank.told = at, samples
            case "phase":
                rank.doing, rank.limit_s = message.get("phase", "?"), message.get("limit_s")
            case "signalled":
                # It may have come to one rank alone: the others must not wait for it.
                if self.notice is Cause.NONE:
                    left = {"remaining_s": self.grace_s, "is_guess": True}
                    self._tell_others(rank, "notice", cause=Cause.PREEMPTED, **left)
            case "publishing":
                self._tell_others(rank, "publish")
            case "saved":
                self.has_progressed |= not message.get("is_start", False)
            case "decided":
                # The next attempt does not meet the same wall: there are only so many halvings.
                self.has_progressed = True
            case "done":
                rank.done = message

    def _tell_others(self, speaker: Rank, kind: str, **facts: Any) -> None:
        for rank in self.ranks:
            if rank is not speaker:
                rank.wire.send(kind, **facts)

    def reap(self, now: float) -> None:
        """Note who has exited; when one is gone, the others must not wait for it for ever."""
        for rank in self.ranks:
            if rank.status is None and (status := rank.process.poll()) is not None:
                self._drain(rank)
                rank.status = status
                if status not in (EXIT_DONE, EXIT_RESUME_ME) and not self.is_killed:
                    if self.first_end is None:
                        self.first_end = rank.number
                    self.kill_by(now + PEERS_LEAVE_S, "another rank had failed")
                elif status == EXIT_RESUME_ME:
                    self.kill_by(now + _LAST_LEAVES_S, "another rank had handed over")

    def _drain(self, rank: Rank) -> None:
        while select.select([rank.wire], [], [], 0)[0]:
            messages = rank.wire.receive()
            if messages is None:
                return
            for message in messages:
                self.on_message(message, rank)

    def kill_by(self, at: float, reason: str) -> None:
        if self.kill_at is None or at < self.kill_at:
            self.kill_at, self.killed_for = at, reason

    def tick(self, now: float) -> Pulse | None:
        """Kill what is due; the rank that hangs, when that is found out."""
        self._count_silence(now)
        if self.kill_at is not None and now >= self.kill_at and not self.is_killed:
            self.is_killed = True
            self.kill()
        pulses = [rank.pulse() for rank in self._live() if self.hung is None]
        if self.is_killed or not is_hung(pulses):
            return None
        pids = {rank.number: rank.process.pid for rank in self.ranks}
        self.hung = find_culprit(
            [replace(pulse, state=state_of(pids[pulse.rank])) for pulse in pulses]
        )
        for rank in self._live():
            _signal_pid(rank.process.pid, STACKS)
        self.kill_by(now + _STACKS_WITHIN_S, self.hung.describe())
        return self.hung

    def _live(self) -> list[Rank]:
        return [rank for rank in self.ranks if rank.status is None]

    def _count_silence(self, now: float) -> None:
        passed = awake_s(self.looked_at, now) if self.looked_at is not None else 0.0
        is_patient = any(rank.limit_s is None for rank in self._live())
        for rank in self.ranks:
            # While one may take its time, the others wait for it: that is not their silence.
            rank.silent_s = 0.0 if is_patient else rank.silent_s + passed
        self.looked_at = now

    def kill(self) -> None:
        for rank in self._live():
            _signal_pid(rank.process.pid, signal.SIGKILL)

    @property
    def has_ended(self) -> bool:
        return all(rank.status is not None for rank in self.ranks)

    @property
    def is_command(self) -> bool:
        return False

    def is_due(self, now: float) -> bool:  # noqa: ARG002
        """Must the lane give notice of the time limit? Ranks watch that clock themselves."""
        return False

    @property
    def last_moment(self) -> float | None:
        """When it must be gone, after such a notice."""
        return None

    def close(self) -> None:
        for rank in self.ranks:
            rank.wire.sock.close()

    def ending(self) -> PhaseEnded:
        """Put the ranks' words and exit statuses together."""
        words = [rank.done for rank in self.ranks if rank.done is not None]
        endings = [Ending(word["ending"]) for word in words]
        cause = self._cause(words)
        is_well = set(endings) in ({Ending.DONE}, {Ending.HANDED_OVER})
        is_well = is_well and len(words) == len(self.ranks)
        for grave in (Ending.SUPERSEDED, Ending.MISTAKE, Ending.STUCK, Ending.FAILED):
            if grave is Ending.FAILED and self.hung is not None and not is_well:
                return self._end(Ending.FAILED, cause, _words_of_hang(self.hung))
            for word in words:
                if word["ending"] == grave and not word.get("is_peer"):
                    return self._end(grave, cause, word)
        is_signalled = self.notice is Cause.NONE and cause is Cause.PREEMPTED
        if is_signalled and not self.has_stepped and Ending.DONE not in endings:
            # Nobody told the supervisor: not the scheduler, but somebody who wants this rank gone.
            words_of_it = (
                "a rank got a signal before its first step (a guard of the node's memory?)"
            )
            return self._end(Ending.FAILED, Cause.NONE, {"message": words_of_it})
        if is_well:
            return self._end(endings[0], cause, words[0])
        silent = sorted(
            (rank for rank in self.ranks if rank.done is None),
            key=lambda rank: rank.number != self.first_end,
        )
        return self._end(
            Ending.FAILED, cause, {"message": self._explain(silent[0] if silent else None)}
        )

    @property
    def is_only_lost(self) -> bool:
        """Did these ranks fail only because those of another node are gone?"""
        failed = [rank for rank in self.ranks if rank.status not in (EXIT_DONE, EXIT_RESUME_ME)]
        return all(
            (rank.done or {}).get("is_peer") or (self.is_killed and rank.number != self.first_end)
            for rank in failed
        )

    def _cause(self, words: list[dict[str, Any]]) -> Cause:
        told = [Cause(word["cause"]) for word in words if word.get("cause", "none") != "none"]
        return self.notice if self.notice is not Cause.NONE else next(iter(told), Cause.NONE)

    def _end(self, ending: Ending, cause: Cause, word: dict[str, Any]) -> PhaseEnded:
        return PhaseEnded(
            ending=ending,
            cause=cause,
            message=str(word.get("message", "")),
            hint=str(word.get("hint", "")),
            has_progressed=self.has_progressed,
            has_stepped=self.has_stepped,
        )

    def _explain(self, rank: Rank | None) -> str:
        if rank is None or rank.status is None:
            return "the ranks did not end alike"
        if self.is_killed and rank.number != self.first_end:
            return f"killed by the supervisor because {self.killed_for}"
        if rank.status < 0:
            name = signal_name(-rank.status)
            return (
                f"rank {rank.number} {SILENTLY_KILLED.format(name)} "
                "(SIGKILL: often the node's memory was full)"
            )
        why = " (code of yours ends the process: look for os._exit)" if not rank.status else ""
        return f"rank {rank.number} ended with exit code {rank.status} without a word{why}"


def _words_of_hang(hung: Pulse) -> dict[str, Any]:
    return {
        "message": f"{hung.describe()}. The stacks of all ranks are in their .err logs",
        "hint": "`tasuki logs RUN --err` shows where it stood",
    }


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _signal_pid(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def make_wires() -> tuple[Wire, socket.socket]:
    """The supervisor's wire, and the socket that goes to the rank."""
    ours, theirs = socket.socketpair()
    ours.set_inheritable(False)
    return Wire(ours), theirs
