"""One at a time, on this host: for what is merely wasteful, or confusing, when done twice at once.

What must never happen twice is guarded by folders that only one can make (claims), which hold on
every file system and on every host; a file system without locks costs us nothing here.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from tasuki.store.atomic import FILE_MODE, make_folder, translated


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Wait for our turn; `path` is made, and stays."""
    make_folder(path.parent)
    with translated(path):
        lock = os.open(path, os.O_RDWR | os.O_CREAT, FILE_MODE)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)
