"""What strace sees of a forked child: an independent witness for `syscalls`."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path


def why_not() -> str | None:
    if shutil.which("strace") is None:
        return "needs strace: `make system` as root on Debian, or install it"
    return None


def calls_on(root: Path, act: Callable[[], object], log: Path) -> list[str]:
    """Names of all system calls of `act` that name a path under `root`, in order."""
    pid = os.fork()
    if pid == 0:
        try:
            os.kill(os.getpid(), signal.SIGSTOP)
            act()
        finally:
            os._exit(0)
    os.waitpid(pid, os.WUNTRACED)
    command = ["strace", "-f", "-y", "-s", "4096", "-o", str(log), "-p", str(pid)]
    tracer = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert tracer.stderr is not None
    told = tracer.stderr.readline()
    if "attached" not in told:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise OSError(f"strace cannot attach: {told}")
    os.kill(pid, signal.SIGCONT)
    os.waitpid(pid, 0)
    tracer.communicate()
    return [name for line in log.read_text().splitlines() if (name := _name(line, str(root)))]


def _name(line: str, root: str) -> str | None:
    """With -f a call may be cut in two, `<unfinished …>` and `<… resumed>`: counted once."""
    match = re.match(r"\d+ +(\w+)\(", line)
    if match is None or not re.search(rf"[<\"]{re.escape(root)}[/>\"(]", line):
        return None
    return match[1]
