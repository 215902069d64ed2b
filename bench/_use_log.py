"""What `run.log(loss=loss)` costs a loop: with it and without, in one process, by turns.

In time of the processor, as the machine may be busy; the lines that are written every ten steps are
counted in. Called by use.py; by itself: `python bench/_use_log.py`. The goal is 3 µs.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

GOAL_US = 3.0
_STEPS = 4_000
_ROUNDS = 45
Row = tuple[str, float, str, float | None]


def measure(*, steps: int = _STEPS, rounds: int = _ROUNDS) -> list[Row]:
    """(what, figure, unit, goal) of each figure."""
    import torch

    import tasuki

    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            loss = torch.ones(1, requires_grad=True).sum()  # has a graph, as a loss has
            model = torch.nn.Linear(1, 1)
            run = tasuki.open_run("log", log_every=10)
            run.track(model=model)
            with run:
                found = _measure(run, loss, steps=steps, rounds=rounds)
                run.finish()
        finally:
            os.chdir(before)
    return found


def _measure(run: object, loss: object, *, steps: int, rounds: int) -> list[Row]:
    log = run.log  # type: ignore[attr-defined]
    batches = run.steps(steps * rounds * 4)  # type: ignore[attr-defined]
    ways = {
        "": lambda: None,  # the call of a function is the loop's, not ours
        "one tensor": lambda: log(loss=loss),
        "one number": lambda: log(loss=0.5),
        "three tensors": lambda: log(loss=loss, a=loss, b=loss),
    }
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, act in ways.items():
            taken[name].append(_time(batches, act, steps))
    empty = taken.pop("")
    rows: list[Row] = []
    for name, seconds in taken.items():
        extra = [1e6 * (one - none) for one, none in zip(seconds, empty, strict=True)]
        goal = GOAL_US if name == "one tensor" else None
        rows.append((f"run.log of {name}, in the loop", median(extra), "µs", goal))
    calls = _calls(log, loss, steps)
    rows.append(("run.log of one tensor, the call alone", calls, "µs", GOAL_US))
    rows.append(("an empty step of run.steps", 1e6 * median(empty), "µs", None))
    return rows


def _calls(log: object, loss: object, steps: int) -> float:
    found = []
    for _ in range(_ROUNDS):
        began = time.thread_time()
        for _ in range(steps):
            log(loss=loss)  # type: ignore[operator]
        found.append(1e6 * (time.thread_time() - began) / steps)
    return median(found)


def _time(batches: object, act: object, steps: int) -> float:
    """Seconds of a step; lines are written in between as in any loop."""
    began = time.thread_time()
    for _ in range(steps):
        next(batches)  # type: ignore[call-overload]
        act()  # type: ignore[operator]
    return (time.thread_time() - began) / steps


def main() -> int:
    for what, figure, unit, goal in measure():
        verdict = (
            "" if goal is None else f"  (goal {goal:g}: {'ok' if figure <= goal else 'MISSED'})"
        )
        print(f"{what:40} {figure:8.2f} {unit}{verdict}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
