"""From the start of a process to the end of its first resumed step, against bare torch.

Run as `python bench/start.py`; about four minutes. Each case is a fresh interpreter that imports
what it needs, finds its checkpoint (1.6 MB, at step 8), loads it and steps, on one thread. Bare is
a loop by hand around `torch.load`; each tool is compared with bare in its own environment.

tasuki is a job's real start: the supervisor, which starts the rank (`python -m tasuki.train`),
which verifies and restores the checkpoint. Its first row counts from the rank's start, as the
others do; the second from the supervisor's. A process's age comes from the kernel, in steps of
10 ms. The CPU time of the process that steps hangs less on who else uses the machine.

BENCH_ROUNDS: rounds. BENCH_PEERS=0: no peers.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from _measure import (
    machine_facts,
    print_facts,
    print_table,
    ratios,
    run_interleaved,
    spread,
    write_results,
)
from _ours import HANDED_OVER, Ours
from _peers import BENCH, end_well_when_told, environment, find_peers, say, versions_of
from _tiny import read_notes, steps_of
from _tools import OF_PEERS, TITLES

ROUNDS = int(os.environ.get("BENCH_ROUNDS", "7"))
STEP = 8
"""Of the checkpoint."""
STEPS = 1_000
TINY = {"samples": 4 * STEPS, "width": 256, "depth": 2}
GOAL = 1.10
BARE, BARE_OF_PEERS = "bare torch", "bare torch, the peers' environment"
OURS, OUR_JOB = "tasuki, the rank", "tasuki, from the supervisor's start"
_WITHIN_S = 120.0


class Taken(NamedTuple):
    process_s: float
    """The age of the process that steps, when its first step is done."""
    cpu_s: float
    """What it computed until then."""
    whole_s: float
    """Since whatever was started first."""


class PeerStart:
    """A tool's own script in a fresh interpreter."""

    def __init__(self, python: Path | str, tool: str, folder: Path) -> None:
        self._python, self._tool, self._folder = python, tool, folder
        (folder / "checkpoints").mkdir(parents=True)
        self._count = 0
        self._run({"leave_at": STEP + 1}, save_every=STEP)

    def __call__(self) -> Taken:
        began = time.monotonic()
        notes = self._run({"leave_at": 2, "is_age_told": True}, resume=True)
        [_, second] = steps_of(notes)
        assert [note["step"] for note in notes if note["kind"] == "resumed"] == [STEP]
        return Taken(second["age_s"], second["cpu_s"], second["t"] - began)

    def _run(self, tiny: dict[str, Any], **order: Any) -> list[dict[str, Any]]:
        self._count += 1
        notes = self._folder / f"{self._count}.notes"
        asked = {
            "folder": str(self._folder / "checkpoints"),
            "steps": STEPS,
            "tiny": {**TINY, "notes": str(notes), **tiny},
            **order,
        }
        done = subprocess.run(
            [str(self._python), str(BENCH / "_tools.py"), self._tool, json.dumps(asked)],
            env=environment(),
            capture_output=True,
            text=True,
            timeout=_WITHIN_S,
            check=False,
        )
        if done.returncode:
            sys.exit(f"error: {self._tool} ended with {done.returncode}\n{done.stderr[-3000:]}")
        return read_notes(notes)


class OwnStart:
    """A job's start; it hands over after two steps, and the next one resumes there."""

    def __init__(self, folder: Path) -> None:
        tiny = {**TINY, "notes": str(folder / "notes"), "leave_by": "term", "is_age_told": True}
        self._run = Ours.make(folder, tiny, steps=STEPS)
        self._start(leave_at=STEP)

    def __call__(self) -> Taken:
        before = len(self._run.notes())
        began = time.monotonic()
        self._start(leave_at=2)
        steps = steps_of(self._run.notes()[before:])
        return Taken(steps[1]["age_s"], steps[1]["cpu_s"], steps[1]["t"] - began)

    def _start(self, *, leave_at: int) -> None:
        self._run.say(leave_at=leave_at)
        status = self._run.start().wait(timeout=_WITHIN_S)
        if status != HANDED_OVER:
            sys.exit(f"error: tasuki ended with {status}\n{self._run.project.logs()[-4000:]}")


def main() -> int:
    end_well_when_told()
    peers = find_peers()
    facts = machine_facts("tasuki", "torch")
    if peers is not None:
        facts["peers"] = versions_of(peers)
    print_facts(facts)
    with tempfile.TemporaryDirectory(prefix="tasuki-bench-") as name:
        cases = _prepare(Path(name), peers)
        say(f"{len(cases)} cases are prepared; {ROUNDS} rounds and a warm-up")
        taken = run_interleaved(cases, rounds=ROUNDS)
    found = _figures(taken)
    _show(found)
    if peers is None:
        print("\nwithout the peers (see above)")
    write_results("start", {"machine": facts, "goal": GOAL, "starts": found})
    return 0


def _prepare(folder: Path, peers: Path | None) -> dict[str, Callable[[], Taken]]:
    cases: dict[str, Callable[[], Taken]] = {BARE: PeerStart(sys.executable, "torch", folder / "a")}
    if peers is not None:
        cases[BARE_OF_PEERS] = PeerStart(peers, "torch", folder / "b")
        for tool in OF_PEERS:
            cases[TITLES[tool]] = PeerStart(peers, tool, folder / tool)
    cases[OURS] = OwnStart(folder / "tasuki")
    return cases


def _figures(taken: dict[str, list[Taken]]) -> dict[str, dict[str, Any]]:
    seconds = {name: [one.process_s for one in ones] for name, ones in taken.items()}
    cpu = {name: [one.cpu_s for one in ones] for name, ones in taken.items()}
    bare = {name: BARE if name in (BARE, OURS) else BARE_OF_PEERS for name in taken}
    found = {
        name: {
            "seconds": spread(values),
            "ratio": ratios(values, seconds[bare[name]]),
            "cpu_ratio": ratios(cpu[name], cpu[bare[name]]),
        }
        for name, values in seconds.items()
    }
    whole = [one.whole_s for one in taken[OURS]]
    found[OUR_JOB] = {"seconds": spread(whole), "ratio": ratios(whole, seconds[BARE])}
    return found


def _show(found: dict[str, dict[str, Any]]) -> None:
    def goal(name: str) -> str:
        if name != OURS:
            return ""
        is_met = found[name]["ratio"].median <= GOAL
        return f"≤ {GOAL:.2f}: {'met' if is_met else 'missed'}"

    print_table(
        f"Process start to the end of the first resumed step; medians of "
        f"{found[BARE]['seconds'].rounds} rounds [quartiles]",
        ["tool", "seconds", "ratio to bare", "ratio of CPU time", "goal"],
        [
            [
                name,
                one["seconds"].show(2),
                one["ratio"].show(3),
                one["cpu_ratio"].show(3) if "cpu_ratio" in one else "",
                goal(name),
            ]
            for name, one in found.items()
        ],
    )


if __name__ == "__main__":
    sys.exit(main())
