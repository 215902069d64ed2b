"""A `cluster.python` that has torch imported already.

`tasuki run` starts `PYTHON -m tasuki.jobs JOB --leash FD`. This stand-in asks the warm server
(tests/harness) to fork that supervisor, hands every signal on to it, gives notice when the leash
breaks, and ends as it ends. Everything else is real: command line, backend, supervisor, worker.
A KILL of the stand-in does not reach the supervisor: tests about KILL use the real interpreter.
"""

from __future__ import annotations

import sys
from pathlib import Path

SCRIPT = """#!{python} -IS
import json, os, select, signal, socket, sys

module = sys.argv.index("tasuki.jobs")  # after `-m`, and whatever stands before it
job, leash = sys.argv[module + 1], int(sys.argv[module + 3])
reader, writer = os.pipe2(os.O_NONBLOCK)
signal.set_wakeup_fd(writer)
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
    signal.signal(number, lambda *_: None)
server = socket.socket(socket.AF_UNIX)
server.connect({socket!r})
environment = {{k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"}}
order = {{"job": job, "log": os.readlink("/proc/self/fd/1"), "environment": environment}}
server.sendall(json.dumps(order).encode() + b"\\n")
words = server.makefile("r")
pid = int(words.readline())
watched = [server, reader, leash]
while server not in (ready := select.select(watched, [], [])[0]):
    if watched[-1] in ready and watched[-1] != reader:
        watched.pop()
        os.kill(pid, signal.SIGTERM)
    if reader in ready:
        for number in os.read(reader, 64):
            os.kill(pid, number)
status = int(words.readline())
sys.exit(status if status >= 0 else 128 - status)
"""


def write_warm_python(path: Path, *, socket: str) -> str:
    path.write_text(SCRIPT.format(python=sys.executable, socket=socket))
    path.chmod(0o755)
    return str(path)
