"""`python -m tests.unit.data.kills`: kill the work at every point where it touches the disk.

Reads {module, order, outputs, before, first, every} as JSON from stdin; `before` is a folder that
the output replaces, or empty. The work is first done undisturbed; then a process is killed
(SIGKILL, by itself) at a call that makes something durable or gives it a name, and another one does
the same work again: for every so many of these calls, and for each of the last, when outputs get
their names. Prints for each point what outputs there were after the kill and after the second call,
as digests of their bytes, and what the second process said.

A process of its own forks all of these: numpy and h5py are imported once.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

from tests.unit.data.heard import Heard

CALLS = ("fsync", "pwrite", "replace", "rename", "unlink", "rmdir")
LAST = 10


def main() -> None:
    asked = json.load(sys.stdin)
    work = importlib.import_module(asked["module"]).work
    order, outputs = asked["order"], [Path(path) for path in asked["outputs"]]
    prepare(outputs, asked["before"])
    before = [digest(path) for path in outputs]
    whole = run(work, order, outputs, kill_at=0)
    num = whole["calls"]
    points = {*range(asked["first"], num + 1, asked["every"]), *range(num - LAST + 1, num + 1)}
    results = []
    for point in sorted(points):
        prepare(outputs, asked["before"])
        killed = run(work, order, outputs, kill_at=point)
        if "killed" in killed:  # a call fewer is made where a folder exists
            results.append(killed | run(work, order, outputs))
    print(json.dumps({"before": before, "whole": whole, "results": results}))


def prepare(outputs: list[Path], before: str) -> None:
    """As it was before the first call."""
    for path in outputs:
        for one in [path, *hidden(path)]:
            shutil.rmtree(one) if one.is_dir() else one.unlink(missing_ok=True)
        if before:
            shutil.copytree(before, path)


def hidden(output: Path) -> list[Path]:
    return list(output.parent.glob(".*"))


def run(work: Any, order: Any, outputs: list[Path], kill_at: int | None = None) -> dict[str, Any]:
    """Do the work in a forked process; with a point of 0 it only counts the calls."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        heard = Heard()
        try:
            calls = [0]
            if kill_at is not None:
                count_calls(calls, kill_at, writer)
            work(order, heard)
            answer: dict[str, Any] = {"said": heard.sentences, "calls": calls[0]}
        except BaseException as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        os.write(writer, json.dumps(answer).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as stream:
        told = stream.read()
    _, status = os.waitpid(pid, 0)
    found = [digest(path) for path in outputs]
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return {"killed": told.decode(), "found": found}
    left = [str(one) for path in outputs for one in hidden(path)]
    return json.loads(told) | {"digests": found, "left": left}


def digest(path: Path) -> Any:
    if path.is_dir():
        return {one.name: digest(one) for one in sorted(path.iterdir())}
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else None


def count_calls(calls: list[int], kill_at: int, writer: int) -> None:
    """Die before the call of this number. The product knows nothing of it."""

    def counted(name: str, call: Any) -> Any:
        def instead(*args: Any, **more: Any) -> Any:
            calls[0] += 1
            if calls[0] == kill_at:
                if name == "pwrite":  # a block that is half written
                    call(args[0], args[1][: len(args[1]) // 2], args[2])
                os.write(writer, f"{name} {kill_at}".encode())
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*args, **more)

        return instead

    for name in CALLS:
        setattr(os, name, counted(name, getattr(os, name)))


if __name__ == "__main__":
    main()
