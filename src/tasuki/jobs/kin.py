"""All processes that a command has started, wherever they went: read from /proc.

Its process group; and whoever left that (torchrun gives each worker a session of its own) but has
the command's mark in its environment: the path of its notice file, which no other phase shares.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tasuki.runs.runs import RunFolder

MARK = "TASUKI_NOTICE"
_OF_FORKSERVERS = (b"multiprocessing.forkserver", b"multiprocessing.resource_tracker")
_GONE_WITHIN_S = 5.0


@dataclass(frozen=True, slots=True)
class _Process:
    pid: int
    parent: int
    group: int


def find_kin(group: int, mark: str, *, is_beyond: bool = False) -> list[int]:
    """Who still lives of a group, or carries this mark; `is_beyond`: only those that left it."""
    return [
        one.pid
        for one in _own()
        if (one.group == group and not is_beyond)
        or (one.group != group and _has_mark(one.pid, f"{mark}\0"))
    ]


def tell_kin(group: int) -> None:
    """TERM to the group, but not to forks: a data loader whose workers die of a notice raises in
    the middle of the last save. Whoever forked them ends them."""
    members = [one for one in _own() if one.group == group]
    words = {one.pid: _words(one.pid) for one in members}
    for one in members:
        is_fork = one.parent in words and words[one.parent] == words[one.pid]
        if not is_fork and not any(text in words[one.pid] for text in _OF_FORKSERVERS):
            send([one.pid], signal.SIGTERM)


def end_leftovers(run: RunFolder, *, sleep: Callable[[float], None]) -> int:
    """Kill what commands of earlier attempts left on this host: their supervisor was killed, and
    nobody ended them. Two at once would write the same files. How many there were."""
    found = _leftovers(run)
    left = found
    waited_s = 0.0
    while left and waited_s < _GONE_WITHIN_S:
        send(left, signal.SIGKILL)
        sleep(0.05)
        waited_s += 0.05
        left = _leftovers(run)
    return len(found)


def send(pids: Sequence[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _leftovers(run: RunFolder) -> list[int]:
    return [one.pid for one in _own() if _has_mark(one.pid, f"{run.commands}/")]


def _own() -> list[_Process]:
    """This user's processes but for zombies and this one."""
    found = []
    for name in os.listdir("/proc"):
        if not name.isdecimal() or int(name) == os.getpid():
            continue
        with contextlib.suppress(OSError, ValueError, IndexError):  # gone meanwhile
            if os.stat(f"/proc/{name}").st_uid != os.getuid():  # noqa: PTH116 - many, and quickly
                continue
            # Before the last bracket is the program's name, which may hold anything.
            stat = Path(f"/proc/{name}/stat").read_bytes().rpartition(b")")[2].split()
            if stat[0] not in (b"Z", b"X"):
                found.append(_Process(int(name), int(stat[1]), int(stat[2])))
    return found


def _has_mark(pid: int, value: str) -> bool:
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False
    return os.fsencode(f"\0{MARK}={value}") in b"\0" + environment


def _words(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
