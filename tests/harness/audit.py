"""Watch what Python itself reports: code that is executed, processes, files outside of a folder."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_NEVER = (
    "exec", "compile", "import", "pickle.find_class", "marshal.load", "code.__new__",
    "function.__new__", "subprocess.", "os.system", "os.exec", "os.posix_spawn", "os.spawn",
    "os.fork", "pty.spawn", "socket.", "ctypes.dlopen", "ctypes.dlsym", "webbrowser.", "urllib.",
    "os.putenv", "sys.addaudithook", "builtins.input",
)  # fmt: skip
_FILES = {
    "open": 1, "os.remove": 1, "os.rename": 2, "os.mkdir": 1, "os.rmdir": 1, "os.link": 2,
    "os.symlink": 2, "os.chmod": 1, "os.chown": 1, "os.truncate": 1, "os.utime": 1,
    "os.listdir": 1, "os.scandir": 1, "shutil.rmtree": 1, "shutil.copyfile": 2, "shutil.move": 2,
}  # fmt: skip
_HARMLESS = {"socket.gethostname"}


def _is_reading_ourselves(event: str, arguments: tuple[Any, ...]) -> bool:
    """This process in /proc, the lines that a warning shows, packages that look for plug-ins."""
    path = str(arguments[0])
    if event in ("os.listdir", "os.scandir"):
        return path.startswith((sys.prefix, *filter(None, sys.path)))
    is_read = event == "open" and arguments[1] in ("r", "rb", None) and not arguments[2] & 3
    return is_read and (path.startswith("/proc/") or path.endswith(".py"))


class Guard:
    """Reports while it is armed. There is no way to take an audit hook back."""

    def __init__(self) -> None:
        self._roots: tuple[str, ...] = ()
        self.seen: list[str] = []
        sys.addaudithook(self._hear)

    @contextmanager
    def armed(self, *roots: Path) -> Iterator[list[str]]:
        """What happens that may not: the list grows while the body runs."""
        self.seen = []
        self._roots = tuple(os.path.realpath(root) for root in roots)
        try:
            yield self.seen
        finally:
            self._roots = ()

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self._roots:
            return
        if event in _HARMLESS:
            return
        if event.startswith(_NEVER):
            self.seen.append(f"{event} {str(arguments)[:120]}")
        elif event in _FILES and not _is_reading_ourselves(event, arguments):
            for path in arguments[: _FILES[event]]:
                if isinstance(path, str | bytes | os.PathLike) and not self._is_inside(path):
                    self.seen.append(f"{event} {os.fsdecode(path)[:120]}")

    def _is_inside(self, path: Any) -> bool:
        text = os.fsdecode(path)
        if not os.path.isabs(text):  # noqa: PTH117
            return "/" not in text and text not in ("..", "")  # relative to an open folder
        real = os.path.normpath(text)
        return any(real == root or real.startswith(root + "/") for root in self._roots)
