"""One at a time, on this host: for what is merely wasteful, or confusing, when done twice at once.

What must never happen twice is guarded by folders that only one can make (claims), which hold on
every file system and on every host; a file system without locks costs us nothing here.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from tasuki.clock import SystemClock
from tasuki.errors import StoreError
from tasuki.runs.atomic import FILE_MODE, make_folder, translated

_LOCK_WITHIN_S = 10.0
"""A process whose parent was killed notices it within a block."""
_LOCK_EVERY_S = 0.1


@contextlib.contextmanager
def locked(
    path: Path, *, is_inheritable: bool = False, on_wait: Callable[[], None] = lambda: None
) -> Iterator[None]:
    """Wait for our turn; `path` is made, and stays. `is_inheritable`: a child that is started with
    `close_fds=False` holds the lock too, until it ends."""
    make_folder(path.parent)
    with translated(path):
        lock = os.open(path, os.O_RDWR | os.O_CREAT, FILE_MODE)
    try:
        os.set_inheritable(lock, is_inheritable)
        with contextlib.suppress(OSError):
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                on_wait()
                fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def take_lock(path: Path) -> int:
    """A work folder's, for as long as the process lives: a second call of a command must not fill
    the outputs of the first. The descriptor that holds it; refused when another keeps it."""
    with translated(path):
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
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
                fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
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
