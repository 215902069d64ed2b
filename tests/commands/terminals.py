"""Terminals: a window of tmux, and one whose every byte is kept."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from tests.commands.projects import (
    Project,
    user_environment,
)

COLOUR = re.compile(r"\x1b\[(?:\d+;)*(?:3\d|4\d|9\d)(?:;\d+)*m")


class Terminal:
    """A window of tmux, as a person sees it."""

    def __init__(self, folder: Path) -> None:
        self._socket = str(folder / "tmux")

    def open(self, command: str, *, folder: Path, columns: int, lines: int = 24) -> None:
        size = ["-x", str(columns), "-y", str(lines)]
        self.tmux("new-session", "-d", *size, "-c", str(folder), command)
        self.tmux("set-option", "-g", "remain-on-exit", "on")

    def screen(self) -> str:
        return self.tmux("capture-pane", "-p")

    def press(self, key: str) -> None:
        self.tmux("send-keys", key)

    def resize(self, *, columns: int, lines: int = 24) -> None:
        self.tmux("resize-window", "-x", str(columns), "-y", str(lines))

    def tmux(self, *words: str) -> str:
        done = subprocess.run(
            ["tmux", "-S", self._socket, "-f", "/dev/null", *words],
            env=user_environment(TERM="xterm-256color", LC_ALL="C.UTF-8"),
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        return done.stdout

    def close(self) -> None:
        with suppress(subprocess.CalledProcessError):  # it ends by itself with its last window
            self.tmux("kill-server")


def command_line(*words: str) -> str:
    """Types a command, shows its exit code, and leaves the window open."""
    return f"{sys.executable} -m tasuki {' '.join(words)}; echo code=$?; sleep 100"


def on_terminal(project: Project, *words: str, **environment: str) -> str:
    """Everything a command sends to a terminal, escapes included."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "tasuki", *words],
        cwd=project.folder,
        env=project.environment | {"TERM": "xterm-256color"} | environment,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    data = b""
    with suppress(OSError):  # EIO: the other side is closed
        while part := os.read(ours, 65536):
            data += part
    os.close(ours)
    process.wait(timeout=60)
    return data.decode()


class Pty:
    """A command on a terminal whose every byte is kept."""

    def __init__(self, folder: Path, environment: dict[str, str], *words: str) -> None:
        self._ours, theirs = pty.openpty()
        self.before = termios.tcgetattr(theirs)
        self._theirs = theirs
        self.process = subprocess.Popen(
            words,
            cwd=folder,
            env=environment,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            # So that Ctrl-C is a signal there; no thread of this process is in the way.
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509
        )
        self.data = b""

    def read_until(self, is_there: Callable[[str], object]) -> str:
        end = time.monotonic() + 60
        while not is_there(self.text):
            assert time.monotonic() < end and self.process.poll() is None, self.text
            self._read(0.1)
        return self.text

    def _read(self, seconds: float) -> None:
        if select.select([self._ours], [], [], seconds)[0]:
            with suppress(OSError):
                self.data += os.read(self._ours, 65536)

    @property
    def text(self) -> str:
        return self.data.decode(errors="replace")

    def type(self, keys: bytes) -> None:
        os.write(self._ours, keys)

    def end(self) -> int:
        """All that it said until then: a terminal gives some kilobytes at a time."""
        end = time.monotonic() + 60
        while (code := self.process.poll()) is None:
            assert time.monotonic() < end, self.text
            self._read(0.1)
        size = -1
        while size < len(self.data):
            size = len(self.data)
            self._read(0.1)
        return code

    def modes(self) -> list:
        return termios.tcgetattr(self._theirs)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)
        os.close(self._theirs)
