"""Fault points: every system call of a phase on the run folder, times everything that can happen.

A clean run records the calls; then the phase is done again and again on a fresh copy of the folder,
each time with one fault at one call. Nothing is sampled. A call is named by its kind, its paths
without their random parts, and its number among those, so that threads and random names do not
matter. What must hold afterwards is in `invariants`.
"""

from __future__ import annotations

import errno
import gc
import os
import re
import shutil
import signal
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.harness.syscalls import LATE, SHORTENED, Call, Child, fork_watched
from tests.resume.storage.driver import LONG, NEW, OLD, PHASES, RUNNING, make_run, memory
from tests.resume.storage.invariants import Outcome, find_violations

from tasuki.errors import TasukiError
from tasuki.runs.runs import RunFolder

_RANDOM = re.compile(
    r"-[0-9a-f]{8}(?=/|$)|\.\d+-[0-9a-f]{8}(?=\.tmp)|(?<=\.c\d)-[0-9a-f]{4}(?=/|$)"
)
_WRITES = {
    "write", "writev", "pwrite64", "pwritev", "pwritev2", "fsync", "fdatasync", "ftruncate",
    "truncate", "fallocate",
    "rename", "renameat", "renameat2", "mkdir", "mkdirat", "rmdir", "unlink", "unlinkat",
    "link", "linkat", "symlink", "chmod", "fchmod", "fchmodat",
}  # fmt: skip
_INTERRUPTED = {"openat", "fsync", "fdatasync", "ftruncate", *SHORTENED}
"""What a signal may interrupt; Python calls again, so that nobody may notice."""
_FULL = ("ENOSPC", "EDQUOT")
_OTHER = ("EIO", "EROFS", "ESTALE")


@dataclass(frozen=True, slots=True)
class Place:
    """A system call of a phase."""

    kind: str
    paths: tuple[str, ...]
    number: int
    """The how many-th of this kind and these paths."""
    is_write: bool
    """May change what is on disk, or tells whether that went well, as `close` does."""
    is_folder: bool
    """Opens a folder."""

    def __str__(self) -> str:
        return f"{self.kind}({', '.join(self.paths)}) #{self.number}"


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens there: an errno once (`EIO`), from there on (`EIO+`) or although the call was
    done (`EIO-late`), `short`, a signal."""

    what: str

    @property
    def errno(self) -> int | None:
        return getattr(errno, self.name, None)

    @property
    def name(self) -> str:
        return self.what.removesuffix("+").removesuffix("-late")

    @property
    def lasts(self) -> bool:
        return self.what.endswith("+")

    def hit(self, call: Call) -> None:
        if self.what.endswith("-late"):
            assert self.errno is not None
            call.fail_late(self.errno)
        elif self.errno is not None:
            call.fail(self.errno)
        elif self.what == "short":
            call.shorten()
        else:
            call.signal(getattr(signal, self.what))


def faults_for(place: Place) -> list[Fault]:
    """All that can go wrong at a call.

    Reading calls meet what a sick disk does to them. A kill at one is the same as a kill at the
    next writing call: nothing on disk changes in between.
    """
    names = ["EIO", "ESTALE"]
    if place.is_write:
        names = [*_FULL, *_OTHER, "EIO+", "EROFS+", "ENOSPC+", "SIGKILL", "SIGTERM"]
    if place.kind in _INTERRUPTED and not place.is_folder:
        names.append("EINTR")
    if place.kind in SHORTENED:
        names.append("short")
    if place.kind in LATE:
        names.append("EIO-late")
    return [Fault(name) for name in names]


class Bench:
    """Does phases with faults, in a child that stays as long as nobody kills it."""

    def __init__(self, folder: Path) -> None:
        gc.freeze()  # forks share what is never collected
        self._folder = folder
        self.run = RunFolder(folder / "now" / "exp")
        self._child: Child | None = None
        self._orders = -1
        for kind in (NEW, OLD, RUNNING, LONG):
            make_run(folder / kind / "exp", kind)

    def record(self, phase: str) -> list[Place]:
        """The calls of a clean run."""
        places = []
        for place, call in self._walk(phase):
            places.append(place)
            call.go_on()
        assert self.outcome(phase, None, None).acknowledged, self._said()
        return places

    def check(self, phase: str, place: Place, fault: Fault) -> list[str]:
        """Do a phase with one fault; what does not hold afterwards, in words."""
        is_hit = False
        for here, call in self._walk(phase):
            with suppress(ProcessLookupError):
                if here == place or (is_hit and fault.lasts and _persists(fault, call, here)):
                    is_hit = True
                    if self._raw():  # it was told; what comes now is the next try
                        call.go_on()
                    else:
                        fault.hit(call)
                else:
                    call.go_on()
        if not is_hit:
            return [f"{phase}: {place} was not met again"]
        outcome = self.outcome(phase, place, fault)
        return [
            f"{phase}: {fault.what} at {place}: {v}" for v in find_violations(self.run, outcome)
        ]

    def outcome(self, phase: str, place: Place | None, fault: Fault | None) -> Outcome:
        child = self._child
        assert child is not None
        said = dict(line.split(" ", 1) for line in child.lines)
        if child.status is not None:
            self._drop()
        return Outcome(
            phase=phase,
            status=child.status,
            acknowledged=said.get("ACK"),
            again=said.get("AGAIN"),
            error=said.get("ERROR"),
            bug=said.get("BUG"),
            # A close that fails has closed all the same; one that we fail has not.
            leak=None if place and place.kind == "close" else said.get("LEAK"),
            errno=fault.name if fault and fault.errno else None,
            must_be_told=bool(place and fault and _must_be_told(phase, place, fault)),
            must_succeed=fault is not None and fault.what in ("EINTR", "short", "SIGTERM"),
            is_killed=fault is not None and fault.what == "SIGKILL",
        )

    def _walk(self, phase: str) -> Iterator[tuple[Place, Call]]:
        self._renew(phase)
        child = self._ready()
        child.said = b""
        os.write(self._orders, phase.encode() + b"\n")
        seen: Counter[tuple[str, tuple[str, ...]]] = Counter()
        written: set[str] = set()
        while (call := child.next()) is not None:
            paths = tuple(self._plain(path) for path in call.paths)
            seen[call.kind, paths] += 1
            is_write = _is_write(call, written)
            if is_write and call.kind == "openat":
                written.update(call.paths)
            yield Place(call.kind, paths, seen[call.kind, paths], is_write, _is_folder(call)), call

    def _plain(self, path: str) -> str:
        return _RANDOM.sub("", path.removeprefix(str(self.run.path)).lstrip("/") or ".")

    def _renew(self, phase: str) -> None:
        shutil.rmtree(self.run.path.parent, ignore_errors=True)
        shutil.copytree(self._folder / PHASES[phase].kind, self.run.path.parent)
        if (prepare := PHASES[phase].prepare) is not None:
            prepare(self.run)

    def _ready(self) -> Child:
        if self._child is None:
            orders, self._orders = os.pipe()
            run = self.run
            self._child = fork_watched(lambda teller: _serve(run, orders, teller), run.path)
            os.close(orders)
        return self._child

    def _drop(self) -> None:
        if self._child is not None:
            self._child.kill()
            os.close(self._orders)
            self._child = None

    def close(self) -> None:
        self._drop()

    def _said(self) -> str:
        return self._raw().decode()

    def _raw(self) -> bytes:
        return self._child.said if self._child else b""


def _serve(run: RunFolder, orders: int, teller: int) -> None:
    """In the child: do what is ordered, again and again."""
    signal.signal(signal.SIGTERM, lambda *_: None)  # a rank's handler sets a flag
    while order := os.read(orders, 100).decode().strip():
        fds = os.listdir("/proc/self/fd")
        for number, word in enumerate(("ACK", "AGAIN")):
            try:
                text = f"{word} {PHASES[order].act(run, number)}"
            except TasukiError as error:
                text = f"ERROR {type(error).__name__} {error.message}"
            except BaseException as error:
                text = f"BUG {type(error).__name__} {error}"
            os.write(teller, text.replace("\n", " ").encode() + b"\n")
            if text.startswith("ACK"):
                break
        if (now := os.listdir("/proc/self/fd")) != fds:
            os.write(teller, f"LEAK {sorted(set(now) - set(fds))}\n".encode())
        os.write(teller, b"END .\n.\n")


def _is_write(call: Call, written: set[str]) -> bool:
    if call.kind == "openat":
        return bool(call.arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
    return call.kind in _WRITES or (call.kind == "close" and call.paths[0] in written)


def _is_folder(call: Call) -> bool:
    return call.kind == "openat" and bool(call.arguments[2] & os.O_DIRECTORY)


def _persists(fault: Fault, call: Call, place: Place) -> bool:
    """A full or read-only disk still reads, and a full one still removes."""
    if call.kind == "close":
        return False
    if fault.what.startswith("ENOSPC"):
        return place.is_write and call.kind not in ("unlink", "unlinkat", "rmdir", "fsync")
    return place.is_write or fault.what.startswith("EIO")


def _must_be_told(phase: str, place: Place, fault: Fault) -> bool:
    """An operation during which this failed may not be acknowledged.

    Removing and putting aside are not among them (what stays is swept later), nor is reserving.
    """
    is_quiet = place.kind in ("unlink", "unlinkat", "rmdir", "fallocate")
    is_aside = place.paths[-1].startswith(("checkpoints/.trash-", "checkpoints/quarantine-"))
    is_aside |= phase == "fallback" and place.paths == ("checkpoints",)  # syncs such a rename
    is_error = fault.errno is not None and fault.what != "EINTR"
    return is_error and place.is_write and not is_quiet and not is_aside


# -- called by the tests, in a process of their own -----------------------------------------------


def check_points(phases: list[str], *, quick: bool) -> dict[str, Any]:
    """All fault points of some phases; the quick set has one per writing call, in turn,
    and a kill before each that makes something visible."""
    # fsync costs nothing there, and the faults are ours anyway
    with tempfile.TemporaryDirectory(dir=memory()) as folder:
        bench = Bench(Path(folder))
        count, kinds, violations = 0, Counter[str](), []
        try:
            for phase in phases:
                places = bench.record(phase)
                kinds.update(place.kind for place in places)
                for place, fault in _choose(places, quick=quick):
                    violations += bench.check(phase, place, fault)
                    count += 1
        finally:
            bench.close()
    return {"points": count, "calls": sum(kinds.values()), "kinds": kinds, "violations": violations}


def _choose(places: list[Place], *, quick: bool) -> Iterator[tuple[Place, Fault]]:
    if not quick:
        yield from ((place, fault) for place in places for fault in faults_for(place))
        return
    turn = ("ENOSPC", "EIO", "SIGKILL")
    for number, place in enumerate(place for place in places if place.is_write):
        fault = "EIO" if place.kind == "fsync" else turn[number % 3]
        yield place, Fault(fault)
        if place.kind.startswith(("rename", "link")) and fault != "SIGKILL":
            yield place, Fault("SIGKILL")  # what is visible before, and what is not yet
    yield from ((place, Fault("short")) for place in places if place.kind == "write")
    reads = [place for place in places if place.kind == "openat" and not place.is_write]
    for place in [place for place in reads if place.paths[0].startswith("check")][::4]:
        yield place, Fault("EIO")  # which is not damage: nobody falls back for it
