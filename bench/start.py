"""From the start of a process to the end of its first resumed step, against bare torch.

Run as `python bench/start.py`; about four minutes. Each case is a fresh interpreter that imports
what it needs, finds its checkpoint (1.6 MB, at step 8), loads it and steps, on one thread. Bare is
a loop by hand around `torch.load`; each tool is compared with bare in the same environment.

tasuki is the real start of a job: the supervisor, which starts the rank (`python -m tasuki.train`),
which verifies and restores the checkpoint. Its first row counts from the rank's start, as the
others do; the second from the supervisor's. A process's age comes from the kernel, in steps of
10 ms. The CPU time of the process that steps depends less on other users of the machine.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from _measure import Figure, ratios, run_bench, run_interleaved, sized
from _ours import INTERRUPTED, Ours
from _peers import BENCH, environment, find_peers
from _tiny import read_notes, steps_of
from _tools import PACKAGE_OF, TITLES

ROUNDS = sized(7, smoke=1)
STEP = 8
"""Of the checkpoint."""
STEPS = 1_000
TINY = {"samples": 4 * STEPS, "width": 256, "depth": 2}
GOAL = 1.10
BARE = "bare torch"
_WITHIN_S = 120.0


class Taken(NamedTuple):
    process_s: float
    """The age of the process that steps, when its first step is done."""
    cpu_s: float
    """Its CPU time until then."""
    total_s: float
    """Since the first process was started."""


class PeerStart:
    """A tool's script in a fresh interpreter."""

    def __init__(self, python: Path | str, tool: str, folder: Path) -> None:
        self._python, self._tool, self._folder = python, tool, folder
        (folder / "checkpoints").mkdir(parents=True)
        self._count = 0
        self._run({"leave_at": STEP + 1}, save_every=STEP)

    def __call__(self) -> Taken:
        started = time.monotonic()
        notes = self._run({"leave_at": 2, "has_age": True}, resume=True)
        [_, second] = steps_of(notes)
        assert [note["step"] for note in notes if note["kind"] == "resumed"] == [STEP]
        return Taken(second["age_s"], second["cpu_s"], second["t"] - started)

    def _run(self, tiny: dict[str, Any], **order: Any) -> list[dict[str, Any]]:
        self._count += 1
        notes = self._folder / f"{self._count}.notes"
        full_order = {
            "folder": str(self._folder / "checkpoints"),
            "steps": STEPS,
            "tiny": {**TINY, "notes": str(notes), **tiny},
            **order,
        }
        done = subprocess.run(
            [str(self._python), str(BENCH / "_tools.py"), self._tool, json.dumps(full_order)],
            env=environment(),
            capture_output=True,
            text=True,
            timeout=_WITHIN_S,
            check=False,
        )
        if done.returncode:
            sys.exit(f"error: {self._tool} ended with {done.returncode}\n{done.stderr[-3000:]}")
        return read_notes(notes)


class TasukiStart:
    """The start of a job. It is interrupted after two steps, and the next start resumes there."""

    def __init__(self, folder: Path) -> None:
        tiny = {**TINY, "notes": str(folder / "notes"), "leave_by": "term", "has_age": True}
        self._run = Ours.make(folder, tiny, steps=STEPS)
        self._start(leave_at=STEP)

    def __call__(self) -> Taken:
        before = len(self._run.notes())
        started = time.monotonic()
        self._start(leave_at=2)
        steps = steps_of(self._run.notes()[before:])
        return Taken(steps[1]["age_s"], steps[1]["cpu_s"], steps[1]["t"] - started)

    def _start(self, *, leave_at: int) -> None:
        self._run.configure(leave_at=leave_at)
        status = self._run.start().wait(timeout=_WITHIN_S)
        if status != INTERRUPTED:
            sys.exit(f"error: tasuki ended with {status}\n{self._run.project.logs()[-4000:]}")


def measure(folder: Path) -> list[Figure]:
    os.environ.setdefault("PYTHONHASHSEED", "0")
    cases: dict[str, Callable[[], Taken]] = {
        "tasuki": TasukiStart(folder / "tasuki"),
        BARE: PeerStart(sys.executable, "torch", folder / "bare"),
    }
    bare_of = {"tasuki": BARE}
    peers = find_peers(*PACKAGE_OF.values())
    for tool, package in PACKAGE_OF.items():
        if package in peers:
            is_here = peers[package] == Path(sys.executable)
            title, bare = TITLES[tool], BARE if is_here else f"{BARE} of the peers"
            cases[title] = PeerStart(peers[package], tool, folder / tool)
            if bare not in cases:
                cases[bare] = PeerStart(peers[package], "torch", folder / "bare-of-peers")
            bare_of[title] = bare
    taken = run_interleaved(cases, rounds=ROUNDS)
    figures = []
    for title, bare in bare_of.items():
        base = taken[bare]
        for what, index in (("", 0), (", CPU time", 1)):
            value = ratios([one[index] for one in taken[title]], [one[index] for one in base])
            goal = GOAL if title == "tasuki" else None
            figures.append(Figure(f"{title}{what}", BARE, value, goal=goal))
    total = ratios([one.total_s for one in taken["tasuki"]], [one[0] for one in taken[BARE]])
    return [*figures, Figure("tasuki, from the supervisor's start", BARE, total)]


if __name__ == "__main__":
    sys.exit(run_bench("start", {"first resumed step": measure}, packages=("torch",)))
