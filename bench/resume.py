"""Resume deep in an epoch: samples that are fetched again, time, and whether the numbers go on.

Run as `python bench/resume.py`; about five minutes. Every tool trains the small model of _tiny.py,
dropout on, to step 10,032 with a checkpoint at step 10,000, in the middle of an epoch: that is the
undisturbed run. Then it resumes from that checkpoint, again and again, each time in a fresh process
with the imports done, and stops after the first new step; at last it goes on to the end, and its
samples and losses are compared with those of the undisturbed run, bit for bit.

Data are map-style (shuffled) or a stream, which can only be read from its beginning; or a stream
that can say where it stands. A sample costs 50 µs while times are taken. The clock runs from the
moment the data are made, which every tool does first.

BENCH_STEP: another step than 10,000. BENCH_ROUNDS: resumes per case. BENCH_PEERS=0: no peers.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from _measure import (
    Spread,
    machine_facts,
    print_facts,
    print_table,
    ratios,
    run_interleaved,
    spread,
    write_results,
)
from _ours import HANDED_OVER, Ours, Warm, warm_server
from _peers import Forked, Worker, end_well_when_told, find_peers, say, versions_of
from _tiny import compare_steps, read_notes, steps_of
from _tools import OF_PEERS, TITLES

STEP = int(os.environ.get("BENCH_STEP", "10000"))
ROUNDS = int(os.environ.get("BENCH_ROUNDS", "5"))
BATCH = 4
REST = 32
"""Steps from the checkpoint to the end of the epoch."""
STEPS = STEP + REST
COST_US = 50
PLAIN = {"samples": STEPS * BATCH}
DATA = {
    "map": "map-style, shuffled",
    "iterable": "a stream",
    "stateful": "a stream with state",
}
TOOLS = {
    "map": ("torch", "stateful", "accelerate", "lightning", "hf", "tasuki"),
    "iterable": ("torch", "stateful", "accelerate", "lightning", "hf", "tasuki"),
    "stateful": ("stateful", "tasuki"),
}
BASELINE = "stateful"
"""Ratios of times are to a loop by hand with torchdata's loader: it does the least."""


class First(NamedTuple):
    """The first step after a resume."""

    fetched: int
    """Samples up to it, its own included."""
    seconds: float


class Case(Protocol):
    """One tool on one kind of data."""

    def prepare(self) -> None:
        """Train undisturbed, with a checkpoint at STEP."""

    def resume(self) -> First: ...

    def go_on(self) -> None:
        """Resume and train to the end."""

    def undisturbed(self) -> list[dict[str, Any]]:
        """The notes of each step."""

    def resumed(self) -> list[dict[str, Any]]:
        """The notes of each step from STEP on."""


def _first(notes: list[dict[str, Any]]) -> First:
    """Of the notes of one process."""
    step = steps_of(notes)[0]
    [made] = [note["t"] for note in notes if note["kind"] == "data"][:1]
    return First(step["fetched"], step["t"] - made)


# -- the peers --------------------------------------------------------------------------------


class PeerCase:
    def __init__(self, worker: Worker, tool: str, data: str, folder: Path) -> None:
        self._worker, self._data, self._folder = worker, data, folder / f"{tool}-{data}"
        self._folder.mkdir()
        self._count = 0

    def _order(self, name: str, tiny: dict[str, Any], **order: Any) -> tuple[Path, int]:
        notes = self._folder / f"{name}.notes"
        asked = {
            "folder": str(self._folder / "checkpoints"),
            "steps": STEPS,
            "data": self._data,
            "batch": BATCH,
            "tiny": {**PLAIN, "notes": str(notes), **tiny},
            "log": str(self._folder / "log"),
            **order,
        }
        return notes, Forked(self._worker, asked).wait()

    def prepare(self) -> None:
        checkpoints = self._folder / "checkpoints"
        checkpoints.mkdir()
        _, status = self._order("whole", {}, save_every=STEP, keep_at=STEP)
        self._check(status)
        shutil.rmtree(checkpoints)  # some save at the end too
        (self._folder / "checkpoints-kept").rename(checkpoints)

    def resume(self) -> First:
        self._count += 1
        tiny = {"cost_us": COST_US, "leave_at": 1}
        notes, status = self._order(f"first-{self._count}", tiny, resume=True)
        self._check(status)
        return _first(read_notes(notes))

    def go_on(self) -> None:
        _, status = self._order("rest", {}, resume=True)
        self._check(status)

    def undisturbed(self) -> list[dict[str, Any]]:
        return steps_of(read_notes(self._folder / "whole.notes"))

    def resumed(self) -> list[dict[str, Any]]:
        return steps_of(read_notes(self._folder / "rest.notes"))

    def _check(self, status: int) -> None:
        if status:
            log = (self._folder / "log").read_text(errors="replace")
            sys.exit(f"error: {self._folder.name} ended with {status}\n{log[-3000:]}")


# -- tasuki -----------------------------------------------------------------------------------


class OwnCase:
    """Each resume hands over after one step: the next one resumes a step later."""

    def __init__(self, warm: Warm, data: str, folder: Path) -> None:
        self._warm = warm
        folder = folder / f"tasuki-{data}"

        def make(name: str) -> Ours:
            tiny = {**PLAIN, "notes": str(folder / f"{name}.notes")}
            return Ours.make(folder / name, tiny, steps=STEPS, data=data, batch=BATCH)

        self._whole, self._run = make("whole"), make("run")

    def prepare(self) -> None:
        self._whole.finish(self._warm)
        self._leave_after(STEP)
        assert self._run.committed_step() == STEP

    def resume(self) -> First:
        before = len(self._run.notes())
        self._leave_after(1, cost_us=COST_US)
        return _first(self._run.notes()[before:])

    def _leave_after(self, steps: int, **tiny: Any) -> None:
        self._run.say(leave_at=steps, leave_by="term", **tiny)
        status = self._run.start_warm(self._warm).wait()
        if status != HANDED_OVER:
            sys.exit(f"error: tasuki ended with {status}\n{self._run.project.logs()[-4000:]}")

    def go_on(self) -> None:
        self._run.say()
        self._run.finish(self._warm)

    def undisturbed(self) -> list[dict[str, Any]]:
        return steps_of(self._whole.notes())

    def resumed(self) -> list[dict[str, Any]]:
        return steps_of(self._run.notes())[STEP:]


# -- measuring --------------------------------------------------------------------------------


@contextmanager
def open_cases(folder: Path, peers: Path | None) -> Iterator[dict[str, dict[str, Case]]]:
    """By kind of data, by tool."""
    with ExitStack() as stack:
        warm = stack.enter_context(warm_server(folder))
        workers: dict[str, Worker] = {}
        cases: dict[str, dict[str, Case]] = {data: {} for data in DATA}
        for data, tools in TOOLS.items():
            for tool in tools:
                if tool == "tasuki":
                    cases[data][tool] = OwnCase(warm, data, folder)
                    continue
                if tool in OF_PEERS and peers is None:
                    continue
                if tool not in workers:
                    python = peers if tool in OF_PEERS and peers is not None else sys.executable
                    workers[tool] = Worker(python, "_tools.py", tool, log=folder / f"{tool}.log")
                    stack.callback(workers[tool].close)
                cases[data][tool] = PeerCase(workers[tool], tool, data, folder)
        yield cases


def measure(cases: dict[str, Case]) -> dict[str, dict[str, Any]]:
    """All tools on one kind of data."""
    firsts = run_interleaved({name: case.resume for name, case in cases.items()}, rounds=ROUNDS)
    found = {}
    for name, case in cases.items():
        case.go_on()
        seconds = [first.seconds for first in firsts[name]]
        found[name] = {
            "replayed": firsts[name][0].fetched - BATCH,
            "seconds": spread(seconds),
            "ratio": ratios(seconds, [first.seconds for first in firsts[BASELINE]]),
            **compare_steps(case.undisturbed(), case.resumed(), at=STEP),
        }
    return found


def prepare(cases: dict[str, dict[str, Case]]) -> None:
    """Nothing is timed here: two tools side by side. A worker does one thing at a time."""
    by_tool: dict[str, list[Case]] = {}
    for of_data in cases.values():
        for tool, case in of_data.items():
            by_tool.setdefault(tool, []).append(case)

    def prepare_all(tool: str) -> None:
        for case in by_tool[tool]:
            case.prepare()
        say(f"{TITLES[tool]}: trained to step {STEPS}, checkpoint at {STEP}")

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(prepare_all, reversed(by_tool)))


def main() -> int:
    end_well_when_told()
    peers = find_peers()
    facts = machine_facts("tasuki", "torch", "torchdata")
    if peers is not None:
        facts["peers"] = versions_of(peers)
    print_facts(facts)
    results: dict[str, Any] = {"machine": facts, "step": STEP, "cost_us": COST_US}
    with (
        tempfile.TemporaryDirectory(prefix="tasuki-bench-") as folder,
        open_cases(Path(folder), peers) as cases,
    ):
        prepare(cases)
        for data, of_data in cases.items():
            results[data] = measure(of_data)
            show(data, results[data])
    if peers is None:
        print("\nwithout the peers (see above)")
    write_results("resume", results)
    return 0


def show(data: str, found: dict[str, dict[str, Any]]) -> None:
    seconds: Spread = found[BASELINE]["seconds"]
    print_table(
        f"Resume at step {STEP}, data: {DATA[data]}; medians of {seconds.rounds} resumes "
        "[quartiles]",
        [
            "tool",
            "samples replayed",
            "ms to the first new step",
            "ratio",
            "same losses, to the bit",
            f"of {REST * BATCH}: repeated",
            "skipped",
        ],
        [
            [
                TITLES[tool],
                str(one["replayed"]),
                one["seconds"].show(0, scale=1e3),
                one["ratio"].show(2),
                "yes" if one["is_bitwise_equal"] else "NO",
                str(one["repeated"]),
                str(one["skipped"]),
            ]
            for tool, one in found.items()
        ],
    )
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
