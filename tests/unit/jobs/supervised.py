"""The real supervisor in this process, with ranks that only say what ranks say."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

from tasuki.clock import SystemClock
from tasuki.jobs.job import JobOrder
from tasuki.jobs.loop import Supervisor

PREEMPTED = [
    {"kind": "step", "step": 1, "total": 9},
    {"kind": "saved", "checkpoint": "c", "is_start": False},
    {"kind": "done", "ending": "handed-over", "cause": "preempted"},
]
CRASHED = [
    {"kind": "step", "step": 1, "total": 9},
    {"kind": "done", "ending": "failed", "cause": "none", "message": "boom"},
]
MISTAKE = [{"kind": "done", "ending": "mistake", "cause": "none", "message": "no such layer"}]


class Said:
    """A rank that has said its words and is gone."""

    pid = 1 << 30  # nobody

    def __init__(self, fd: int, words: list[dict[str, Any]], status: int) -> None:
        self._status = status
        os.write(fd, b"".join(json.dumps(word).encode() + b"\n" for word in words))

    def poll(self) -> int | None:
        return self._status


def saying(words: list[dict[str, Any]], status: int) -> Callable[[Any], Said]:
    """Instead of starting a rank."""
    return lambda launch: Said(launch.fd, words, status)


def supervise(job: JobOrder, launch: Callable[[Any], Any], **environment: str) -> int:
    """One start of the job; its exit code."""
    supervisor = Supervisor(
        job, clock=SystemClock(), launch=launch, environment=environment, leash=None
    )
    return supervisor.run().exit_code
