"""One process at a time in a work folder.

Freed when the process ends, however it ends. Used where a second call of a command must not fill
the outputs of the first (data/curate, data/tokens); runs have claims instead.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from tasuki.clock import SystemClock
from tasuki.errors import StoreError
from tasuki.store.atomic import make_folder, translated

_LOCK_WITHIN_S = 10.0
"""A process whose parent was killed notices it within a block."""
_LOCK_EVERY_S = 0.1


def take_lock(path: Path) -> int:
    """The descriptor that holds the lock; closing it gives the lock back."""
    with translated(path):
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    end = SystemClock.monotonic() + _LOCK_WITHIN_S
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_same(fd, path):
                return fd
            # Whoever held it has removed the folder: this lock is nobody's any more.
            os.close(fd)
            with translated(path):
                make_folder(path.parent)
                fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except BlockingIOError:
            if SystemClock.monotonic() > end:
                os.close(fd)
                raise StoreError(
                    f"another process is writing in `{path.parent}`",
                    hint="wait until it is done, or end it; the same command then goes on",
                ) from None
            SystemClock.sleep(_LOCK_EVERY_S)
        except OSError:  # a file system without locks
            return fd


def _is_same(fd: int, path: Path) -> bool:
    try:
        return os.fstat(fd).st_ino == path.stat().st_ino
    except FileNotFoundError:
        return False
