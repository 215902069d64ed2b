"""Durable files: whole or not there, also after a kill, a full disk or a power cut.

Temp file beside the target, fsync, rename, fsync of the folder. On shared file systems too: no
locks, no modification times, and what must be unique is made by `link` or `mkdir`.
"""

from __future__ import annotations

import contextlib
import errno
import fnmatch
import io
import json
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tasuki.errors import DiskFull, NewerFormat, StoreError
from tasuki.failpoints import failpoint

FORMAT = 1
"""Of every JSON file tasuki writes. A reader refuses a larger one by name."""

FOLDER_MODE = 0o700
FILE_MODE = 0o600
_FULL = {errno.ENOSPC, errno.EDQUOT}
_WORTH_RESERVING = 1 << 20
_MAX_JSON = 64 << 20
"""Larger files are not ours."""


def make_folder(path: Path) -> Path:
    """Make a folder and its parents, private to the user whatever the umask."""
    with translated(path):
        for folder in reversed([path, *path.parents]):
            if not folder.is_dir():
                try:
                    folder.mkdir(mode=FOLDER_MODE)
                    fsync_folder(folder.parent)  # or a power cut may take it, and all in it
                except FileExistsError:
                    if not folder.is_dir():  # not another process that was faster: a file
                        words = "a file is in the way of this folder"
                        raise NotADirectoryError(errno.ENOTDIR, words) from None
    return path


def refuse_foreign(folder: Path, *, beside: Path) -> None:
    """A folder of ours must be one: no link to elsewhere, and nobody else's.

    Nobody else: our own user, or whoever owns the folder `beside` (on some file servers root's
    files belong to nobody).
    """
    with translated(folder):
        try:
            found = folder.lstat()
        except FileNotFoundError:
            return
        owners = {os.geteuid(), beside.stat().st_uid}
    if stat.S_ISLNK(found.st_mode):
        raise StoreError(
            f"{folder} is a link, which tasuki does not write through",
            hint="`runs` itself may be one: set `runs:` in the spec to where it shall be",
        )
    if found.st_uid not in owners:
        raise StoreError(
            f"{folder} belongs to another user (number {found.st_uid})",
            hint="use a runs folder of your own",
        )


def fsync_folder(path: Path) -> None:
    """Make the names in a folder durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_all(fd: int, data: bytes | memoryview) -> None:
    """Write every byte: a single `write` may be short."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def write_bytes(path: Path, data: bytes) -> None:
    """Replace a file by new content, durably."""
    with translated(path, need=len(data)):
        temp = _write_temp(path, data)
        try:
            failpoint(f"rename {path.name}")
            temp.replace(path)
        except BaseException:
            temp.unlink(missing_ok=True)
            raise
        fsync_folder(path.parent)


def write_json(path: Path, value: object) -> None:
    """Replace a JSON file, durably."""
    write_bytes(path, to_json(value))


def create_exclusive(path: Path, data: bytes) -> bool:
    """Create a file with its whole content, unless it exists: one caller wins."""
    with translated(path, need=len(data)):
        temp = _write_temp(path, data)
        try:
            os.link(temp, path)
        except FileExistsError:
            return False
        finally:
            temp.unlink(missing_ok=True)
        fsync_folder(path.parent)
        return True


_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False)
"""Made once: `json.dumps` would make one for every line."""


def to_json(value: object) -> bytes:
    """One line of JSON. NaN and inf are refused: other readers of these files choke on them."""
    try:
        return _ENCODER.encode(value).encode() + b"\n"
    except UnicodeEncodeError:  # half a character, as in a file name that is no UTF-8
        return json.dumps(value, allow_nan=False).encode() + b"\n"


def open_plain(path: Path) -> io.FileIO:
    """Open a plain file to read; of a pipe, a folder or a device, an error instead of a wait.

    The one way in which files are read that others could have put into a run's folder.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if stat.S_ISREG(os.fstat(fd).st_mode):
            return io.FileIO(fd, "rb")
    except OSError:
        os.close(fd)
        raise
    os.close(fd)
    raise StoreError(
        f"{path} is damaged: it is no plain file",
        hint="nothing of tasuki makes such a thing there: move it away",
    )


def read_plain(path: Path, *, limit: int) -> bytes:
    """The content of a plain file; of a giant, an error instead."""
    with translated(path), open_plain(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            raise StoreError(
                f"{path} is damaged: it is too large ({_in_words(size)})",
                hint="restore it from a copy",
            )
        return file.readall()


def read_json(path: Path) -> dict[str, Any]:
    """Read one of our own JSON files; a newer format is refused by name."""
    raw = read_plain(path, limit=_MAX_JSON)
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{path} is damaged: {error}", hint="restore it from a copy") from error
    if not isinstance(value, dict):
        raise StoreError(f"{path} is damaged: it holds no JSON object")
    if isinstance(found := value.get("format", FORMAT), int) and found > FORMAT:
        raise NewerFormat(
            f"{path} has format {found}; this tasuki reads up to {FORMAT}",
            hint="use the tasuki that wrote it, or a newer one",
        )
    return value


def read_json_or_none(path: Path) -> dict[str, Any] | None:
    """As `read_json`, but a file that is not there is no error."""
    with translated(path):
        try:
            path.lstat()
        except (FileNotFoundError, NotADirectoryError):
            return None
    return read_json(path)


def remove_tree(path: Path) -> None:
    """Remove a folder and all in it, as far as that is possible; what stays is swept later."""
    import shutil  # here: the command line never needs it

    with contextlib.suppress(OSError):  # rmtree's own `ignore_errors` lets some through
        shutil.rmtree(path, ignore_errors=True)


def list_temps(folder: Path) -> list[Path]:
    """Files that are being written, or were when their writer was killed."""
    try:
        return list(folder.glob(".*.tmp"))
    except OSError:
        return []


def remove_files(paths: Iterable[Path]) -> None:
    """Remove files that nobody needs, as far as that is possible."""
    for path in paths:
        with contextlib.suppress(OSError):
            path.unlink()


def list_folder(folder: Path, pattern: str = "*") -> list[Path]:
    """What a folder holds, sorted; nothing if it is not there."""
    with translated(folder):
        try:
            names = os.listdir(folder)
        except FileNotFoundError:
            return []
    return sorted(folder / name for name in names if fnmatch.fnmatchcase(name, pattern))


@contextlib.contextmanager
def shaped(path: Path) -> Iterator[None]:
    """Around taking a file of ours apart: one that parses but holds something else is damaged."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
        words = f"{type(error).__name__} {error}"
        raise StoreError(f"{path} is damaged: {words}", hint="restore it from a copy") from error


@contextlib.contextmanager
def translated(path: Path, *, need: int | None = None) -> Iterator[None]:
    """Turn an OSError into a StoreError that names errno, path, need and free space."""
    try:
        yield
    except OSError as error:
        raise _explain(error, path, need) from error


def _explain(error: OSError, path: Path, need: int | None) -> StoreError:
    name = errno.errorcode.get(error.errno or 0, "?")
    words = f"{path}: {error.strerror or error} ({name})"
    if error.errno in _FULL:
        try:
            free = f"{_in_words(free_bytes(path))} free"
        except StoreError:
            free = "free space unknown"
        wants = f"needs {_in_words(need)}, " if need is not None else ""
        return DiskFull(
            f"{words}: {wants}{free}",
            hint="make room there, or write to another disk; nothing that was committed is lost",
        )
    return StoreError(words)


def reserve(fd: int, size: int) -> None:
    """Set room aside, so that a full disk or quota says so before a byte is written.

    Where the file system cannot do that, writing itself will tell. Not `os.posix_fallocate`: there
    it writes a byte into every block instead, which on NFS takes as long as the file itself.
    """
    if size < _WORTH_RESERVING:
        return
    import ctypes  # here: the command line never needs it

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.fallocate(fd, 0, ctypes.c_int64(0), ctypes.c_int64(size)) == 0:
        return
    number = ctypes.get_errno()
    if number in _FULL:
        raise OSError(number, os.strerror(number))


def free_bytes(path: Path) -> int:
    """Free space for this user on the disk that holds, or would hold, `path`."""
    with translated(path):
        folder = next((p for p in [path, *path.parents] if p.is_dir()), Path("/"))
        disk = os.statvfs(folder)
    return disk.f_bavail * disk.f_frsize


def _write_temp(path: Path, data: bytes) -> Path:
    temp = path.with_name(f".{path.name}.{os.getpid()}-{os.urandom(4).hex()}.tmp")
    fd = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)
    try:
        try:
            write_all(fd, data)
            os.fsync(fd)
        finally:
            os.close(fd)
    except BaseException:
        temp.unlink(missing_ok=True)
        raise
    return temp


def _in_words(size: int) -> str:
    """Bytes, for an error. Imported here: every supervisor would pay for it at its start."""
    from tasuki.units import format_bytes

    return format_bytes(size)
