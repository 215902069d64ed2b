"""A file system that loses its power: an ext4 image, copied while it is in use, mounted again.

What a process wrote but did not sync is in the page cache above the loop device, so it is not in
the copy; what it synced is. All processes that write there are stopped while the copy is made. A
copy that the kernel tore nevertheless cannot be mounted and is made again. Needs root and loop
devices; `why_not` names what is missing. Used by promises.py.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

IMAGE_MB = 192


class TornCopy(Exception):
    """The copy caught the file system in the middle of a write."""


def why_not(folder: Path) -> str | None:
    """None: power cuts can be made here."""
    if os.geteuid() != 0:
        return "needs root"
    if missing := [tool for tool in ("mkfs.ext4", "mount", "umount") if not shutil.which(tool)]:
        return f"needs {missing[0]}"
    try:
        with Disk(folder / "probe").mounted():
            return None
    except (subprocess.SubprocessError, OSError) as error:
        return f"cannot mount here: {getattr(error, 'stderr', '') or error}"


class Disk:
    """An image and the place where it is mounted."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self.image, self.place = folder / "disk.img", folder / "disk"
        self._copy = folder / "copy.img"
        self._copied = folder / "copied"

    @contextlib.contextmanager
    def mounted(self) -> Iterator[Path]:
        with self.image.open("wb") as file:
            file.truncate(IMAGE_MB << 20)
        _run("mkfs.ext4", "-q", "-F", str(self.image))
        with _mounted(self.image, self.place):
            yield self.place

    def cut(self) -> None:
        """Now. The processes that write there must be stopped."""
        _run("cp", "--sparse=always", str(self.image), str(self._copy))

    @contextlib.contextmanager
    def after(self) -> Iterator[Path]:
        """The file system as it is when the power is back."""
        try:
            with _mounted(self._copy, self._copied):
                yield self._copied
        except subprocess.CalledProcessError as error:
            if error.cmd[0] != "mount":
                raise
            raise TornCopy from error
        finally:
            self._copy.unlink(missing_ok=True)


@contextlib.contextmanager
def _mounted(image: Path, place: Path) -> Iterator[None]:
    place.mkdir(exist_ok=True)
    _run("mount", "-o", "loop", str(image), str(place))
    try:
        yield
    finally:
        try:
            _run("umount", str(place))
        except subprocess.SubprocessError:
            _run("umount", "-l", str(place))  # somebody's file is still open: when it is closed


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
