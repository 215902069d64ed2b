"""The ranks of one phase: one stage's training, or one evaluation, as processes.

Started together; down together: when one fails, the others get a few seconds and are killed.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from tasuki.errors import EXIT_DONE, EXIT_RESUME_ME
from tasuki.relay.values import Cause, Ending, PhaseEnded
from tasuki.store.atomic import FILE_MODE, make_folder
from tasuki.telemetry.wire import Wire

PEERS_LEAVE_S = 4.0
"""How long the other ranks may take to notice that one is gone (gloo: 0.34 s) before they are
killed."""


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
    cwd: Path
    environment: dict[str, str]
    log: Path
    err: Path
    fd: int
    """The rank's end of the socketpair; the same number in the child."""


Launcher = Callable[[Launch], Process]


def start_process(launch: Launch) -> Process:
    """A fresh interpreter. It stays in the supervisor's process group: one signal reaches all."""
    with _append(launch.log) as out, _append(launch.err) as err:
        return subprocess.Popen(
            # -P: a file of the user's called random.py must not hide Python's own.
            [launch.python, "-P", "-m", "tasuki.train", *launch.arguments],
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
    status: int | None = None
    done: dict[str, Any] | None = None


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

    def tell(self, kind: str, **facts: Any) -> None:
        for rank in self.ranks:
            rank.wire.send(kind, **facts)

    def on_message(self, message: dict[str, Any], rank: Rank) -> None:
        match message["kind"]:
            case "step":
                self.has_stepped = True
            case "saved":
                self.has_progressed |= not message.get("is_start", False)
            case "done":
                rank.done = message

    def reap(self, now: float) -> None:
        """Note who has exited; when one failed, the others must not wait for it for ever."""
        for rank in self.ranks:
            if rank.status is None and (status := rank.process.poll()) is not None:
                self._drain(rank)
                rank.status = status
                if status not in (EXIT_DONE, EXIT_RESUME_ME) and not self.is_killed:
                    if self.first_end is None:
                        self.first_end = rank.number
                    self.kill_by(now + PEERS_LEAVE_S, "another rank had failed")

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

    def tick(self, now: float) -> None:
        if self.kill_at is not None and now >= self.kill_at and not self.is_killed:
            self.is_killed = True
            self.kill()

    def kill(self) -> None:
        for rank in self.ranks:
            if rank.status is None:
                _kill_pid(rank.process.pid)

    @property
    def has_ended(self) -> bool:
        return all(rank.status is not None for rank in self.ranks)

    def close(self) -> None:
        for rank in self.ranks:
            rank.wire.sock.close()

    def ending(self) -> PhaseEnded:
        """Put the ranks' words and exit statuses together."""
        words = [rank.done for rank in self.ranks if rank.done is not None]
        endings = [Ending(word["ending"]) for word in words]
        cause = self._cause(words)
        for grave in (Ending.SUPERSEDED, Ending.MISTAKE, Ending.STUCK, Ending.FAILED):
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
        is_well = set(endings) in ({Ending.DONE}, {Ending.HANDED_OVER})
        if is_well and len(words) == len(self.ranks):
            return self._end(endings[0], cause, words[0])
        silent = sorted(
            (rank for rank in self.ranks if rank.done is None),
            key=lambda rank: rank.number != self.first_end,
        )
        return self._end(
            Ending.FAILED, cause, {"message": self._explain(silent[0] if silent else None)}
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
            name = _signal_name(-rank.status)
            return (
                f"rank {rank.number} was killed by {name} without a word "
                "(SIGKILL: often the node's memory was full)"
            )
        return f"rank {rank.number} ended with exit code {rank.status} without a word"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _kill_pid(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def make_wires() -> tuple[Wire, socket.socket]:
    """The supervisor's wire, and the socket that goes to the rank."""
    ours, theirs = socket.socketpair()
    ours.set_inheritable(False)
    return Wire(ours), theirs
