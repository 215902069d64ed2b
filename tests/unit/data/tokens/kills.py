"""`python -m tests.unit.data.tokens.kills`: kill the work at every point where it touches the disk.

Reads {order, first, every, before} as JSON from stdin; `before` is a folder to be replaced.
As tests/unit/data/curate/kills.py, for an output that is a folder: for each point, what it holds
after a second call, what that said, and whether a reader would have found half of it before.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet  # noqa: F401  # once, not in every fork
import tokenizers  # noqa: F401
from tests.unit.data.curate.kills import count_calls
from tests.unit.data.tokens.corpus import Heard

from tasuki.data.tokens.index import read_index
from tasuki.data.tokens.work import work
from tasuki.errors import TasukiError

LAST = 14


def main() -> None:
    asked = json.load(sys.stdin)
    order, output = asked["order"], Path(asked["order"]["output"])
    if asked["before"]:
        shutil.copytree(asked["before"], output)
    whole = run(order, kill_at=0)
    num = whole["calls"]
    points = {*range(asked["first"], num + 1, asked["every"]), *range(num - LAST + 1, num + 1)}
    results = []
    for point in sorted(points):
        forget(output)
        if asked["before"]:
            shutil.copytree(asked["before"], output)
        killed = run(order, kill_at=point)
        if "killed" in killed:
            half = {"half": is_half(output)}
            results.append({"at": killed["killed"], **half, **run(order)})
    print(json.dumps({"whole": whole, "results": results}))


def forget(output: Path) -> None:
    shutil.rmtree(output, ignore_errors=True)
    shutil.rmtree(output.with_name(f".{output.name}.partial"), ignore_errors=True)


def is_half(output: Path) -> bool:
    """Whether there is something with the output's name that is not complete."""
    try:
        read_index(output)[0].refuse_sizes(output)
    except TasukiError:
        return output.exists()
    return False


def run(order: dict[str, Any], kill_at: int | None = None) -> dict[str, Any]:
    """Do the work in a forked process; with a point of 0 it only counts the calls."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        heard = Heard()
        try:
            calls = [0]
            if kill_at is not None:
                count_calls(calls, kill_at, writer)
            work(order, heard)  # type: ignore[arg-type]
            answer: dict[str, Any] = {"said": heard.sentences, "calls": calls[0]}
        except BaseException as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        os.write(writer, json.dumps(answer).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as stream:
        told = stream.read()
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return {"killed": told.decode()}
    output = Path(order["output"])
    left = [str(one) for one in output.parent.glob(".*")]
    return json.loads(told) | {"digests": digests(output), "left": left}


def digests(output: Path) -> dict[str, str]:
    if not output.exists():
        return {}
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in output.iterdir()}


if __name__ == "__main__":
    main()
